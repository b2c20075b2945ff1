/* Keys and the light switch. "/" goes to the search box, Escape leaves it or closes a menu, Enter opens what a cell of a
   grid stands for, as a click does, Tab leaves the grid; the choice of light or dark is kept. */
(function () {
  "use strict";
  var root = document.documentElement;
  var kept = null;
  try { kept = window.localStorage.getItem("gputide-theme"); } catch (error) { kept = null; }
  if (kept === "light" || kept === "dark") { root.setAttribute("data-theme", kept); }

  function isTyping(target) {
    return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
  }

  document.addEventListener("keydown", function (event) {
    var cell = event.target instanceof Element ? event.target.closest(".ag-cell") : null;
    if (cell && event.key === "Enter") { cell.click(); }
    if (event.key === "Escape") {
      document.querySelectorAll("details.menu[open]").forEach(function (menu) {
        menu.removeAttribute("open");
        if (menu.contains(document.activeElement)) { menu.querySelector("summary").focus(); }
      });
    }
    var box = document.getElementById("search");
    if (!box) { return; }
    if (event.key === "/" && !isTyping(event.target)) { event.preventDefault(); box.focus(); }
    if (event.key === "Escape" && document.activeElement === box) { box.blur(); }
    if (event.key === "Enter" && document.activeElement === box) {
      var first = document.querySelector("#search-results a");
      if (first) { first.click(); box.blur(); }
    }
  });

  /* Tab leaves a table, in which the arrows move (WAI-ARIA, grid): cell by cell nobody gets out of 100,000 rows. The
     grid's guards and rows would take the focus back in, so they step aside for this key. */
  document.addEventListener("keydown", function (event) {
    var cell = event.target instanceof Element && event.key === "Tab" ? event.target.closest(".ag-cell, .ag-row") : null;
    if (!cell) { return; }
    event.stopPropagation();
    cell.closest(".ag-root-wrapper").querySelectorAll("[tabindex='0']").forEach(function (part) {
      part.setAttribute("tabindex", "-1");
      window.setTimeout(function () { part.setAttribute("tabindex", "0"); }, 0);
    });
  }, true);

  /* Another language of what is shown now: the page changes its address in place, and the link was made before. */
  document.addEventListener("click", function (event) {
    var link = event.target instanceof Element ? event.target.closest("a.language") : null;
    if (!link) { return; }
    var here = new URL(window.location.href);
    here.searchParams.set("lang", link.lang);
    link.href = here.href;
  }, true);

  document.addEventListener("click", function (event) {
    var button = event.target instanceof Element ? event.target.closest("#theme") : null;
    if (button) {
      var isDark = root.getAttribute("data-theme") === "dark" ||
        (!root.hasAttribute("data-theme") && window.matchMedia("(prefers-color-scheme: dark)").matches);
      var next = isDark ? "light" : "dark";
      root.setAttribute("data-theme", next);
      try { window.localStorage.setItem("gputide-theme", next); } catch (error) { /* private window: not kept */ }
    }
    document.querySelectorAll("details.menu[open]").forEach(function (menu) {
      if (!menu.contains(event.target) || event.target.closest("a")) { menu.removeAttribute("open"); }
    });
  });
})();
