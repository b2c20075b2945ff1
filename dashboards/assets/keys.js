/* Keys and the light switch. "/" goes to the search box, Escape leaves it or closes a menu; the choice of light or dark is
   kept. */
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
