/* What a sheet shows, taken along: its tables and figures as CSV and JSON, its figures as pictures.
   A cell that a spreadsheet would run as a formula is quoted with an apostrophe (owasp.org, CSV injection). */
(function () {
  "use strict";
  var FORMULA = /^\s*[=+\-@\t\r]|^[\t\r\n]/;
  var NUMBER = /^[+\-]?[\d.,]+( ?%)?$/;
  var PICTURE_SCALE = 2;
  var POINT = ["series", "x", "y", "value", "text"];

  function textOf(cell) {
    var spoken = cell.querySelector("[aria-label]");
    var text = cell.innerText.replace(/\s*\n\s*/g, " · ").trim();
    return text || (spoken ? spoken.getAttribute("aria-label") : "");
  }

  function rowsOf(table) {
    return Array.from(table.rows).map(function (row) { return Array.from(row.cells).map(textOf); });
  }

  function listRows(sheet) {
    return Array.from(sheet.querySelectorAll(".funnel .step, .stage-line")).map(function (row) {
      return Array.from(row.children).map(textOf).filter(function (text) { return text !== ""; });
    });
  }

  function quoted(value) {
    var text = value === null || value === undefined ? "" : String(value);
    if (FORMULA.test(text) && !NUMBER.test(text)) { text = "'" + text; }
    return /[",\r\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  }

  function csv(rows) {
    return rows.map(function (row) { return row.map(quoted).join(","); }).join("\r\n") + "\r\n";
  }

  function plain(value) {
    if (ArrayBuffer.isView(value)) { return Array.from(value); }
    return Array.isArray(value) ? value.map(plain) : value;
  }

  /* One row per point: the trace's name, where it stands, what it says. */
  function pointsOf(graph) {
    var rows = [POINT];
    graph.data.forEach(function (trace) {
      var x = plain(trace.x || []), y = plain(trace.y || []), text = plain(trace.text || []);
      var name = trace.name || "";
      if (trace.type === "heatmap") {
        plain(trace.z || []).forEach(function (line, place) {
          line.forEach(function (value, column) {
            if (value === null) { return; }
            var said = text[place] ? text[place][column] : "";
            rows.push([name, x[column], y[place], value, String(said).replace(/<br>/g, " · ")]);
          });
        });
        return;
      }
      x.forEach(function (value, place) {
        if (value === null) { return; }
        rows.push([name, value, y[place], "", Array.isArray(text) ? text[place] : text]);
      });
    });
    return rows.filter(function (row, place) { return place === 0 || row.join("\u0000") !== rows[place - 1].join("\u0000"); });
  }

  function records(rows) {
    var head = rows[0] || [];
    return rows.slice(1).map(function (row) {
      var record = {};
      row.forEach(function (value, place) { record[head[place] || "column " + (place + 1)] = value; });
      return record;
    });
  }

  function save(name, blob) {
    var link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    document.body.appendChild(link);
    link.click();
    link.remove();
    window.setTimeout(function () { URL.revokeObjectURL(link.href); }, 10000);
  }

  function figure(graph) {
    return {
      data: graph.data.map(function (trace) {
        var kept = {};
        Object.keys(trace).forEach(function (key) { if (key !== "hovertemplate") { kept[key] = plain(trace[key]); } });
        return kept;
      }),
      layout: graph.layout
    };
  }

  /* On the page's own paper and ink: the page's style sheet does not reach into a picture. */
  function picture(graph, name) {
    var style = window.getComputedStyle(document.documentElement);
    var ink = style.getPropertyValue("--ink").trim(), paper = style.getPropertyValue("--sheet").trim();
    var layout = Object.assign({}, graph.layout, {
      paper_bgcolor: paper, font: Object.assign({}, graph.layout.font, { color: ink })
    });
    window.Plotly.toImage({ data: graph.data, layout: layout }, {
      format: "png", width: graph.clientWidth, height: graph.clientHeight, scale: PICTURE_SCALE
    }).then(function (url) {
      var bytes = window.atob(url.split(",")[1]);
      var array = new Uint8Array(bytes.length);
      for (var place = 0; place < bytes.length; place += 1) { array[place] = bytes.charCodeAt(place); }
      save(name + ".png", new Blob([array], { type: "image/png" }));
    });
  }

  /* A figure of `drawn.js` as a picture: variables and fonts of the page's style sheet go along inside it. */
  function drawing(root, name) {
    var svg = root.drawnFigure.svg, style = window.getComputedStyle(document.documentElement);
    var wide = root.clientWidth, high = svg.clientHeight, copy = svg.cloneNode(true);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", wide);
    copy.setAttribute("height", high);
    copy.querySelectorAll("[style]").forEach(function (part) {
      part.setAttribute("style", part.getAttribute("style").replace(/var\((--[a-z-]+)\)/g, function (_, variable) {
        return style.getPropertyValue(variable).trim();
      }));
    });
    copy.querySelectorAll("text").forEach(function (part) {
      part.setAttribute("style", "font: 12px " + style.getPropertyValue("--font") + "; fill: " + style.getPropertyValue("--ink-soft"));
    });
    var image = new Image(), url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
    image.onload = function () {
      var canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
      canvas.width = wide * PICTURE_SCALE;
      canvas.height = high * PICTURE_SCALE;
      pen.fillStyle = style.getPropertyValue("--sheet").trim();
      pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      URL.revokeObjectURL(url);
      canvas.toBlob(function (blob) { save(name + ".png", blob); });
    };
    image.src = url;
  }

  document.addEventListener("click", function (event) {
    var button = event.target instanceof Element ? event.target.closest("[data-export]") : null;
    if (!button) { return; }
    var sheet = button.closest(".card"), kind = button.getAttribute("data-export");
    var name = button.getAttribute("data-name");
    var graphs = Array.from(sheet.querySelectorAll(".js-plotly-plot"));
    var drawings = Array.from(sheet.querySelectorAll(".drawn"));
    var tables = Array.from(sheet.querySelectorAll("table")).map(rowsOf);
    var listed = listRows(sheet);
    if (listed.length) { tables.unshift(listed); }
    button.closest("details").removeAttribute("open");
    if (kind === "png") {
      graphs.forEach(function (graph) { picture(graph, name); });
      drawings.forEach(function (root) { drawing(root, name); });
    }
    if (kind === "csv") {
      var parts = tables.map(csv).concat(graphs.map(function (graph) { return csv(pointsOf(graph)); }),
        drawings.map(function (root) { return csv([POINT].concat(root.drawnFigure.points())); }));
      save(name + ".csv", new Blob(["\ufeff" + parts.join("\r\n")], { type: "text/csv;charset=utf-8" }));
    }
    if (kind === "json") {
      var what = { tables: tables.map(records), figures: graphs.map(figure).concat(drawings.map(function (root) { return root.drawnFigure.spec; })) };
      save(name + ".json", new Blob([JSON.stringify(what, null, 1)], { type: "application/json" }));
    }
  });
})();
