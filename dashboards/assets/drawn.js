/* Two figures that the first page shows, drawn without a charting library: squares (the card map) and stacked areas over
   time. A button as large as what is pointed at is the way for the keyboard: arrows move it, Enter opens a square; what it
   stands on is read out. Names become text and nothing else. `export.js` takes the figures along. */
(function () {
  "use strict";
  var SVG = "http://www.w3.org/2000/svg", INSET = 0.07, TICK_PX = 64, LINE_PX = 18, DAY_STEPS = 24;
  var opened = 0;
  var numbers = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

  function mark(tag, attributes, style, text) {
    var made = document.createElementNS(SVG, tag);
    Object.keys(attributes).forEach(function (name) { made.setAttribute(name, attributes[name]); });
    Object.assign(made.style, style || {});
    if (text !== undefined) { made.textContent = text; }
    return made;
  }

  function plain(tag, className) {
    var made = document.createElement(tag);
    made.className = className;
    return made;
  }

  /* What both have: the picture, the button that moves over it, and what is said of the place it stands on.
     `shape` gives `draw(width)`, the height; `at(x, y)` and `step(place, key)`, a place or -1; `box(place)`, left, top,
     width and height; `lines(place)`; `open(place)`, or nothing. */
  function build(root, spec, shape) {
    var svg = mark("svg", { role: "img", "aria-label": spec.name }, { display: "block", width: "100%" });
    var stand = plain("button", "drawn-stand"), tip = plain("p", "drawn-tip");
    var width = 0, at = -1;
    stand.setAttribute("aria-label", spec.name);
    tip.setAttribute("role", "status");

    function show(place) {
      at = place;
      tip.textContent = place < 0 ? "" : shape.lines(place).join("\n");
      stand.classList.toggle("on", place >= 0);
      if (place < 0) { return; }
      var box = shape.box(place);
      Object.assign(stand.style, { left: box[0] + "px", top: box[1] + "px", width: box[2] + "px", height: box[3] + "px" });
      var isRight = box[0] + box[2] / 2 > width / 2;
      Object.assign(tip.style, {
        top: box[1] + Math.min(box[3], 24) + 6 + "px", left: isRight ? "" : box[0] + "px",
        right: isRight ? width - box[0] - box[2] + "px" : ""
      });
    }

    function placed(event) {
      var corner = svg.getBoundingClientRect();
      return shape.at(event.clientX - corner.left, event.clientY - corner.top);
    }

    svg.addEventListener("pointermove", function (event) {
      var place = placed(event);
      svg.style.cursor = place >= 0 && shape.open ? "pointer" : "";
      if (place !== at) { show(place); }
    });
    svg.addEventListener("pointerleave", function () { if (document.activeElement !== stand) { show(-1); } });
    svg.addEventListener("click", function (event) {
      var place = placed(event);
      if (place >= 0 && shape.open) { shape.open(place); }
    });
    stand.addEventListener("focus", function () { show(Math.max(at, 0)); });
    stand.addEventListener("blur", function () { show(-1); });
    stand.addEventListener("click", function () { if (at >= 0 && shape.open) { shape.open(at); } });
    stand.addEventListener("keydown", function (event) {
      var place = /^(Arrow|Home|End|Page)/.test(event.key) ? shape.step(at, event.key) : -1;
      if (place < 0) { return; }
      event.preventDefault();
      show(place);
    });
    root.replaceChildren(svg, stand, tip);
    if (root.drawnSize) { root.drawnSize.disconnect(); }
    root.drawnSize = new ResizeObserver(function () {
      if (root.clientWidth === width || !root.clientWidth) { return; }
      width = root.clientWidth;
      svg.replaceChildren();
      var height = shape.draw(svg, width);
      svg.setAttribute("viewBox", "0 0 " + width + " " + height);
      svg.style.height = height + "px";
      show(document.activeElement === stand ? at : -1);
    });
    root.drawnSize.observe(root);
    root.drawnFigure = { points: shape.points, spec: spec, svg: svg };
  }

  function squares(spec) {
    var all = spec.squares, count = all.key.length, wide = 1, tall = spec.square_px;

    function box(place, share) {
      var side = 1 - 2 * INSET, high = side * Math.min(1, Math.max(0.06, share));
      return "M" + ((all.x[place] + INSET) * wide).toFixed(1) + " " + ((all.y[place] + 1 - INSET) * tall).toFixed(1) +
        "h" + (side * wide).toFixed(1) + "v" + (-high * tall).toFixed(1) + "h" + (-side * wide).toFixed(1) + "z";
    }

    function cross(place) {
      var x = all.x[place] * wide, y = all.y[place] * tall, reach = 0.56, from = 0.22;
      return "M" + (x + from * wide) + " " + (y + from * tall) + "l" + reach * wide + " " + reach * tall +
        "M" + (x + (from + reach) * wide) + " " + (y + from * tall) + "l" + -reach * wide + " " + reach * tall;
    }

    function notch(place) {
      var level = all.y[place] + 1 - INSET - (1 - 2 * INSET) * all.notch[place] / 100;
      return "M" + ((all.x[place] + 0.58) * wide).toFixed(1) + " " + (level * tall).toFixed(1) + "h" +
        ((0.42 - INSET) * wide).toFixed(1);
    }

    function chosen(test) {
      var found = [];
      for (var place = 0; place < count; place += 1) { if (test(place)) { found.push(place); } }
      return found;
    }

    /* A light rim around dark strokes, so that they show on every ground. */
    function rimmed(svg, path, thick) {
      svg.append(
        mark("path", { d: path, "class": "rim" }, { fill: "none", stroke: "var(--sheet)", strokeWidth: 2 * thick }),
        mark("path", { d: path, "class": "rimmed" }, { fill: "none", stroke: "var(--ink)", strokeWidth: thick })
      );
    }

    function draw(svg, width) {
      wide = width / spec.columns;
      var unit = Math.min(wide, tall);
      spec.states.forEach(function (name, number) {
        var here = chosen(function (place) { return all.state[place] === number; }), colour = "var(--state-" + name + ")";
        if (!here.length) { return; }
        var frames = here.map(function (place) { return box(place, 1); }).join("");
        if (name === "free") {
          svg.append(mark("path", { d: frames, "class": name }, {
            fill: colour, fillOpacity: 0.06, stroke: colour, strokeWidth: 0.09 * unit
          }));
          return;
        }
        var bars = here.filter(function (place) { return all.fill[place]; });
        svg.append(
          mark("path", { d: frames, "class": name }, { fill: colour, fillOpacity: name === "idle-held" ? 0.5 : 0.22 }),
          mark("path", { d: bars.map(function (place) { return box(place, all.fill[place] / 100); }).join("") }, { fill: colour })
        );
        if (name === "untrusted") {
          svg.append(mark("path", { d: here.map(cross).join(""), "class": "cross" }, {
            stroke: "var(--ink-soft)", strokeWidth: 0.1 * unit
          }));
        }
      });
      rimmed(svg, chosen(function (place) { return all.notch[place]; }).map(notch).join(""), 0.13 * unit);
      rimmed(svg, all.outlined.map(function (place) { return box(place, 1); }).join(""), 0.16 * unit);
      spec.labels.forEach(function (label) {
        svg.append(mark("text", { x: label[0] * wide, y: label[1] * tall, "dominant-baseline": "middle" }, {}, label[2]));
      });
      return Math.ceil(spec.height * tall);
    }

    function nearest(place, isDown) {
      var best = -1;
      for (var other = 0; other < count; other += 1) {
        var isThere = isDown ? all.y[other] > all.y[place] : all.y[other] < all.y[place];
        if (!isThere) { continue; }
        var away = Math.abs(all.y[other] - all.y[place]), off = Math.abs(all.x[other] - all.x[place]);
        var held = best < 0 ? [Infinity, 0] : [Math.abs(all.y[best] - all.y[place]), Math.abs(all.x[best] - all.x[place])];
        if (away < held[0] || (away === held[0] && off < held[1])) { best = other; }
      }
      return best;
    }

    return {
      draw: draw,
      at: function (x, y) {
        var column = x / wide, row = y / tall;
        return chosen(function (place) {
          return column >= all.x[place] && column < all.x[place] + 1 && row >= all.y[place] && row < all.y[place] + 1;
        }).concat(-1)[0];
      },
      step: function (place, key) {
        if (key === "ArrowRight") { return Math.min(count - 1, place + 1); }
        if (key === "ArrowLeft") { return Math.max(0, place - 1); }
        if (key === "Home" || key === "End") { return key === "Home" ? 0 : count - 1; }
        return key === "ArrowUp" || key === "ArrowDown" ? nearest(place, key === "ArrowDown") : -1;
      },
      box: function (place) { return [all.x[place] * wide, all.y[place] * tall, wide, tall]; },
      lines: function (place) { return [all.key[place], all.text[place]]; },
      open: !spec.chosen ? null : function (place) {
        opened += 1;
        window.dash_clientside.set_props(spec.chosen, { data: { key: all.key[place], number: opened } });
      },
      points: function () {
        return all.key.map(function (key, place) {
          return [key, all.x[place], all.y[place], "", all.text[place].replace(/\n/g, " · ")];
        });
      }
    };
  }

  function areas(spec) {
    var count = spec.moments.length, left = 44, top = LINE_PX, high = spec.height_px - 2 * LINE_PX, wide = 1, most = 1;
    var sums = spec.moments.map(function (_, place) {
      return spec.series.reduce(function (sum, one) { return sum + one.values[place]; }, 0);
    });

    function step() {
      var rough = Math.max.apply(null, sums.concat(1e-9)) / 4, power = Math.pow(10, Math.floor(Math.log10(rough)));
      return [1, 2, 5, 10].find(function (times) { return times * power >= rough; }) * power;
    }

    function legend(svg, width) {
      var x = left, y = 8;
      spec.series.forEach(function (one) {
        var text = mark("text", { "dominant-baseline": "middle" }, {}, one.name);
        svg.append(text);
        var long = text.getComputedTextLength() + 32;
        if (x > left && x + long > width) { x = left; y += LINE_PX; }
        text.setAttribute("x", x + 15);
        text.setAttribute("y", y);
        svg.append(mark("rect", { x: x, y: y - 5, width: 10, height: 10 }, { fill: one.colour }));
        x += long;
      });
      return y + LINE_PX;
    }

    function across(place) { return left + place * wide; }

    function up(value) { return top + high - value / most * high; }

    function draw(svg, width) {
      var each = step(), shown = -Infinity, below = spec.moments.map(function () { return 0; });
      top = legend(svg, width);
      wide = (width - left - 8) / count;
      most = Math.ceil(Math.max.apply(null, sums.concat(1e-9)) / each) * each;
      for (var value = 0; value <= most * 1.0001; value += each) {
        svg.append(
          mark("path", { d: "M" + left + " " + up(value) + "H" + (width - 8) }, { stroke: "var(--line-soft)" }),
          mark("text", { x: left - 6, y: up(value), "text-anchor": "end", "dominant-baseline": "middle" }, {}, numbers.format(value))
        );
      }
      spec.series.forEach(function (one) {
        var above = below.map(function (sum, place) { return sum + one.values[place]; });
        var path = "M" + left + " " + up(below[0]);
        above.forEach(function (sum, place) { path += "V" + up(sum).toFixed(1) + "H" + across(place + 1).toFixed(1); });
        for (var place = count - 1; place >= 0; place -= 1) {
          path += "V" + up(below[place]).toFixed(1) + "H" + across(place).toFixed(1);
        }
        svg.append(mark("path", { d: path + "z", "class": "area" }, { fill: one.colour }));
        below = above;
      });
      spec.days.forEach(function (day) {
        if (across(day[0]) - shown < TICK_PX) { return; }
        shown = across(day[0]);
        svg.append(
          mark("path", { d: "M" + shown + " " + (top + high) + "v4" }, { stroke: "var(--line)" }),
          mark("text", { x: shown, y: top + high + LINE_PX }, {}, day[1])
        );
      });
      svg.append(mark("text", {
        x: 8, y: top + high / 2, "text-anchor": "middle", transform: "rotate(-90 8 " + (top + high / 2) + ")"
      }, {}, spec.unit));
      return top + high + LINE_PX + 6;
    }

    return {
      draw: draw,
      at: function (x, y) {
        var place = Math.floor((x - left) / wide);
        return place >= 0 && place < count && y >= top && y <= top + high ? place : -1;
      },
      step: function (place, key) {
        var far = { ArrowRight: 1, ArrowLeft: -1, PageDown: DAY_STEPS, PageUp: -DAY_STEPS, Home: -count, End: count }[key];
        return far === undefined ? -1 : Math.max(0, Math.min(count - 1, place + far));
      },
      box: function (place) { return [across(place), top, Math.max(2, wide), high]; },
      lines: function (place) {
        return [spec.moments[place]].concat(spec.series.map(function (one) {
          return numbers.format(one.values[place]) + " " + one.name;
        }).reverse());
      },
      points: function () {
        return [].concat.apply([], spec.series.map(function (one) {
          return one.values.map(function (value, place) { return [one.name, spec.moments[place], value, "", ""]; });
        }));
      }
    };
  }

  var figures = document.getElementsByClassName("drawn");
  new MutationObserver(function () {
    Array.prototype.forEach.call(figures, function (root) {
      if (root.drawnFrom === root.dataset.figure) { return; }
      root.drawnFrom = root.dataset.figure;
      var spec = JSON.parse(root.dataset.figure);
      build(root, spec, spec.squares ? squares(spec) : areas(spec));
    });
  }).observe(document.documentElement, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["data-figure"]
  });
})();
