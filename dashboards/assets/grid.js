/* Large tables: a heading, a field per column to filter by, and the rows that are in sight. Rows come a hundred at a time
   from the server, which sorts and filters (`view_models/grid_rows.py`); what they say becomes text and nothing else. What
   is moved to, sorted, filtered and opened follows the grid pattern of the ARIA Authoring Practices (w3.org/WAI/ARIA/apg):
   arrows, Home, End and Page keys move, Enter opens what a row stands for, Tab leaves. Browsers draw up to 17 million
   pixels of height (Firefox; Chromium 33 million), which is 590,000 rows. */
(function () {
  "use strict";
  var ROW_PX = 30, BLOCK_ROWS = 100, BLOCKS_MAX = 20, SPARE_ROWS = 8, TYPING_MS = 250, SCROLL_MS = 40;
  var HEADINGS = -2, FIELDS = -1;
  var opened = 0;

  function part(tag, className, role) {
    var made = document.createElement(tag);
    if (className) { made.className = className; }
    if (role) { made.setAttribute("role", role); }
    return made;
  }

  function formatter(column) {
    if (column.digits === undefined) {
      return function (value) { return value === null || value === undefined ? "" : String(value); };
    }
    var numbers = new Intl.NumberFormat("en-US", {
      style: column.percent ? "percent" : "decimal",
      minimumFractionDigits: column.digits, maximumFractionDigits: column.digits
    });
    return function (value) { return value === null || value === undefined ? "–" : numbers.format(value); };
  }

  function build(root) {
    var spec = JSON.parse(root.dataset.grid), columns = spec.columns;
    var given = JSON.parse(root.dataset.filters), filters = Object.assign({}, given), sorts = [];
    var blocks = new Map(), asked = new Set(), drawn = new Map();
    var count = 0, turn = 0, at = { row: 0, column: 0 }, frame = 0, waiting = 0;
    var formats = columns.map(formatter);
    var view = part("div", "grid-view", "grid"), head = part("div", "grid-head", "rowgroup");
    var body = part("div", "grid-body", "rowgroup"), said = part("p", "grid-said", "status");
    var headings = [], fields = [];

    function tell() { window.dash_clientside.set_props(spec.name + "-asked", { data: { filters: filters, sorts: sorts } }); }

    /* Asks anew, from the first row; what is shown stays, dimmed, until the answer is there. */
    function again() {
      turn += 1;
      blocks.clear();
      asked.clear();
      at.row = 0;
      view.scrollTop = 0;
      view.setAttribute("aria-busy", "true");
      ask(0);
    }

    function ask(block) {
      if (blocks.has(block) || asked.has(block)) { return; }
      var mine = turn;
      asked.add(block);
      window.fetch(spec.address, {
        method: "POST", headers: { "Content-Type": "application/json" },
        body: JSON.stringify({
          search: spec.search, first: block * BLOCK_ROWS, count: BLOCK_ROWS, filters: filters, sorts: sorts
        })
      }).then(function (answer) {
        if (!answer.ok) { throw new Error(String(answer.status)); }
        return answer.json();
      }).then(function (answer) {
        if (mine === turn) { take(block, answer); }
      }).catch(function () {
        if (mine !== turn) { return; }
        asked.delete(block);
        view.removeAttribute("aria-busy");
        said.textContent = spec.words.failed;
      });
    }

    function take(block, answer) {
      asked.delete(block);
      blocks.set(block, answer.rows);
      if (blocks.size > BLOCKS_MAX) { blocks.delete(blocks.keys().next().value); }
      count = answer.count;
      said.textContent = answer.said;
      view.removeAttribute("aria-busy");
      view.setAttribute("aria-rowcount", String(count + 2));
      body.style.height = count * ROW_PX + "px";
      drawn.forEach(function (row, place) { fill(row, place); });
      draw();
    }

    function rowAt(place) {
      var block = Math.floor(place / BLOCK_ROWS), rows = blocks.get(block);
      if (!rows) { return null; }
      blocks.delete(block);
      blocks.set(block, rows);  // used last
      return rows[place % BLOCK_ROWS] || null;
    }

    function newRow(place) {
      var row = part("div", "grid-row", "row");
      row.dataset.row = String(place);
      row.setAttribute("aria-rowindex", String(place + 3));
      row.style.top = place * ROW_PX + "px";
      columns.forEach(function (column, number) {
        var cell = part("div", column.digits === undefined ? "grid-cell" : "grid-cell n", "gridcell");
        cell.dataset.col = column.field;
        cell.setAttribute("aria-colindex", String(number + 1));
        cell.tabIndex = -1;
        row.append(cell);
      });
      fill(row, place);
      return row;
    }

    function fill(row, place) {
      var values = rowAt(place);
      row.toggleAttribute("aria-busy", values === null);
      columns.forEach(function (column, number) {
        row.children[number].textContent = values === null ? "" : formats[number](values[column.field]);
      });
    }

    function inSight() { return view.clientHeight - head.offsetHeight; }

    function draw() {
      var first = Math.max(0, Math.floor(view.scrollTop / ROW_PX) - SPARE_ROWS);
      var end = Math.min(count, Math.ceil((view.scrollTop + inSight()) / ROW_PX) + SPARE_ROWS), next = null;
      drawn.forEach(function (row, place) {
        // Who stands on a row does not lose it by scrolling.
        if (place >= count || ((place < first || place >= end) && !row.contains(document.activeElement))) {
          row.remove();
          drawn.delete(place);
        }
      });
      for (var place = end - 1; place >= first; place -= 1) {
        var row = drawn.get(place);
        if (!row) {
          row = newRow(place);
          body.insertBefore(row, next);
          drawn.set(place, row);
        }
        next = row;
      }
      if (!drawn.has(at.row)) { at.row = Math.min(Math.ceil(view.scrollTop / ROW_PX), count - 1); }
      reach(at.row, at.column);
      window.clearTimeout(waiting);  // what is scrolled past is not asked for
      waiting = window.setTimeout(function () {
        for (var block = Math.floor(first / BLOCK_ROWS); block * BLOCK_ROWS < end; block += 1) { ask(block); }
      }, SCROLL_MS);
    }

    /* The one cell that Tab comes to. */
    function reach(place, column) {
      body.querySelectorAll("[tabindex='0']").forEach(function (cell) { cell.tabIndex = -1; });
      at = { row: place, column: column };
      var row = drawn.get(place);
      if (row) { row.children[column].tabIndex = 0; }
    }

    function focus(place, column) {
      var number = Math.max(0, Math.min(column, columns.length - 1));
      if (place < 0) {
        var target = place === FIELDS && fields[number] ? fields[number] : headings[number];
        if (target) { target.focus(); }
        return;
      }
      var row = Math.max(0, Math.min(place, count - 1)), top = row * ROW_PX;
      if (top < view.scrollTop) { view.scrollTop = top; }
      if (top + ROW_PX > view.scrollTop + inSight()) { view.scrollTop = top + ROW_PX - inSight(); }
      draw();
      if (!drawn.has(row)) { return; }
      reach(row, number);
      drawn.get(row).children[number].focus({ preventScroll: true });
      drawn.get(row).children[number].scrollIntoView({ block: "nearest", inline: "nearest" });
    }

    function openRow(place) {
      var values = rowAt(place);
      if (!values) { return; }
      opened += 1;
      window.dash_clientside.set_props(spec.name + "-chosen", { data: { key: values[spec.key], number: opened } });
    }

    function sortBy(field, isFurther) {
      var held = sorts.find(function (entry) { return entry[0] === field; });
      var way = !held ? "asc" : held[1] === "asc" ? "desc" : null;
      sorts = isFurther ? sorts.filter(function (entry) { return entry[0] !== field; }) : [];
      if (way) { sorts = sorts.concat([[field, way]]).slice(-4); }
      showSorts();
      tell();
      again();
    }

    function showSorts() {
      columns.forEach(function (column, number) {
        var held = sorts.find(function (entry) { return entry[0] === column.field; });
        var cell = headings[number].closest("[role=columnheader]");
        if (held) { cell.setAttribute("aria-sort", held[1] === "asc" ? "ascending" : "descending"); }
        else { cell.removeAttribute("aria-sort"); }
      });
    }

    function filterBy(field, text) {
      if ((filters[field] || "") === text) { return; }
      if (text) { filters[field] = text; } else { delete filters[field]; }
      tell();
      again();
    }

    /* The address asks for other rows: its own fields change, the others keep what was typed. */
    function askedFor(wanted) {
      Object.keys(given).concat(Object.keys(wanted)).forEach(function (field) {
        var text = wanted[field] || "", place = columns.findIndex(function (column) { return column.field === field; });
        if (text) { filters[field] = text; } else { delete filters[field]; }
        if (fields[place]) { fields[place].value = text; }
      });
      given = wanted;
      tell();
      again();
    }

    function heading(column, number) {
      var cell = part("div", column.digits === undefined ? "grid-cell" : "grid-cell n", "columnheader");
      var label = part(column.still ? "span" : "button", column.still ? "" : "quiet");
      label.textContent = column.title;
      label.tabIndex = number === 0 ? 0 : -1;
      label.addEventListener("click", function (event) { if (!column.still) { sortBy(column.field, event.shiftKey); } });
      cell.dataset.col = column.field;
      cell.setAttribute("aria-colindex", String(number + 1));
      cell.append(label);
      headings.push(label);
      return cell;
    }

    function field(column, number) {
      var cell = part("div", "grid-cell", "gridcell");
      cell.setAttribute("aria-colindex", String(number + 1));
      if (column.still) { fields.push(null); return cell; }
      var typing = 0, box = part("input", column.digits === undefined ? "" : "n");
      box.type = "text";
      box.value = filters[column.field] || "";
      box.title = column.digits === undefined ? spec.words.text : spec.words.number;
      box.placeholder = column.digits === undefined ? "" : "> < ..";
      box.autocomplete = "off";
      box.spellcheck = false;
      box.setAttribute("aria-label", spec.words.filter + ": " + column.title);
      box.addEventListener("input", function () {
        window.clearTimeout(typing);
        typing = window.setTimeout(function () { filterBy(column.field, box.value); }, TYPING_MS);
      });
      cell.append(box);
      fields.push(box);
      return cell;
    }

    function placeOf(target) {
      var row = target.closest("[role=row]"), cell = target.closest("[aria-colindex]");
      return row && cell ? { row: Number(row.dataset.row), column: Number(cell.getAttribute("aria-colindex")) - 1 } : null;
    }

    view.addEventListener("keydown", function (event) {
      var from = placeOf(event.target), page = Math.max(1, Math.floor(inSight() / ROW_PX) - 1);
      if (!from || event.altKey || event.metaKey) { return; }
      var isField = from.row === FIELDS, to = { row: from.row, column: from.column };
      if (event.key === "Enter" && isField) { filterBy(columns[from.column].field, event.target.value); return; }
      if (event.key === "Enter" && from.row >= 0) { openRow(from.row); return; }
      if (event.key === "ArrowDown") { to.row += 1; }
      else if (event.key === "ArrowUp") { to.row = Math.max(HEADINGS, to.row - 1); }
      else if (event.key === "PageDown" && from.row >= 0) { to.row += page; }
      else if (event.key === "PageUp" && from.row >= 0) { to.row = Math.max(0, to.row - page); }
      else if (isField) { return; }
      else if (event.key === "ArrowRight") { to.column += 1; }
      else if (event.key === "ArrowLeft") { to.column -= 1; }
      else if (event.key === "Home") { to = { row: event.ctrlKey ? 0 : to.row, column: 0 }; }
      else if (event.key === "End") { to = { row: event.ctrlKey ? count - 1 : to.row, column: columns.length - 1 }; }
      else { return; }
      if (to.row === FIELDS && !fields[to.column]) { to.row += from.row < to.row ? 1 : -1; }
      event.preventDefault();
      focus(to.row, to.column);
    });

    body.addEventListener("focusin", function (event) {
      var place = placeOf(event.target);
      if (place) { reach(place.row, place.column); }
    });

    body.addEventListener("click", function (event) {
      var place = placeOf(event.target);
      if (place && window.getSelection().isCollapsed) { openRow(place.row); }
    });

    body.addEventListener("mouseover", function (event) {
      var cell = event.target.closest(".grid-cell");
      if (cell) { cell.title = cell.scrollWidth > cell.clientWidth ? cell.textContent : ""; }
    });

    view.addEventListener("scroll", function () {
      window.cancelAnimationFrame(frame);
      frame = window.requestAnimationFrame(draw);
    }, { passive: true });

    [[heading, HEADINGS], [field, FIELDS]].forEach(function (line) {
      var row = part("div", "grid-line", "row");
      row.dataset.row = String(line[1]);
      row.setAttribute("aria-rowindex", String(line[1] + 3));
      row.append.apply(row, columns.map(line[0]));
      head.append(row);
    });
    view.style.setProperty("--grid-columns", columns.map(function (column) {
      return "minmax(" + column.min + "px, " + (column.max ? column.max + "px" : "1fr") + ")";
    }).join(" "));
    view.style.setProperty("--grid-width", columns.reduce(function (sum, column) { return sum + column.min; }, 0) + "px");
    view.setAttribute("aria-label", spec.title);
    view.setAttribute("aria-colcount", String(columns.length));
    view.append(head, body);
    said.textContent = "…";
    root.replaceChildren(view, said);
    root.askedFor = askedFor;
    again();
  }

  var grids = document.getElementsByClassName("grid");
  new MutationObserver(function () {
    Array.prototype.forEach.call(grids, function (root) {
      if (root.builtFrom !== root.dataset.grid) {
        root.builtFrom = root.dataset.grid;
        root.filledFrom = root.dataset.filters;
        build(root);
      } else if (root.filledFrom !== root.dataset.filters) {
        root.filledFrom = root.dataset.filters;
        root.askedFor(JSON.parse(root.dataset.filters));
      }
    });
  }).observe(document.documentElement, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["data-grid", "data-filters"]
  });
})();
