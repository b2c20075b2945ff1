/* What stages would change: a row per object, drawn from the values that the server gave, for a component per object
   takes Dash seconds. The two sides of an object are asked for when its row is opened, and each is one text. */
(function () {
  "use strict";

  function part(name, className, text) {
    var made = document.createElement(name);
    if (className) { made.className = className; }
    if (text) { made.textContent = text; }
    return made;
  }

  /* Runs of lines, by turns alike and changed (`page_plan_diff.sides`). */
  function side(given, mark, title) {
    var text = part("pre");
    text.tabIndex = 0;
    text.setAttribute("role", "region");
    text.setAttribute("aria-label", given.name + ": " + title);
    given.runs.forEach(function (run, place) { if (run) { text.append(place % 2 ? part(mark, "", run) : run); } });
    return text;
  }

  function load(row, address, failed) {
    var body = part("div", "sides", "…");
    row.append(body);
    fetch(address).then(function (answer) {
      return answer.ok ? answer.json() : answer.text().then(function (why) { throw new Error(why); });
    }).then(function (given) {
      var title = row.querySelector(".name").textContent;
      body.replaceChildren(side(given.before, "del", title), side(given.after, "ins", title));
    }).catch(function (error) {
      body.replaceWith(part("p", "message failed", failed + ": " + error.message));
    });
  }

  function draw(list) {
    var given = list.dataset;
    list.replaceChildren.apply(list, JSON.parse(given.objects).map(function (item, place) {
      var row = part("details", "diff"), head = part("summary");
      head.append(part("b", "", item.kind), " ", part("span", "name", item.name), " ", part("code", "", item.recommendation));
      if (item.way) {
        head.append(" ", part("span", "soft", item.way));
      }
      if (item.refusal) {
        var why = part("span", "refusal", "✕ " + item.refusal);
        why.lang = "en";
        head.append(why);
      }
      row.append(head);
      row.addEventListener("toggle", function () {
        if (row.open && !row.querySelector(".sides")) {
          row.querySelectorAll(".message").forEach(function (old) { old.remove(); });
          load(row, given.address + "/" + place, given.failed);
        }
      });
      return row;
    }));
  }

  new MutationObserver(function () {
    document.querySelectorAll(".diffs[data-objects]").forEach(function (list) {
      if (list.drawnFrom !== list.dataset.address) {
        list.drawnFrom = list.dataset.address;
        draw(list);
      }
    });
  }).observe(document.documentElement, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["data-address"]
  });
})();
