/* The way back on the plan page: its address holds the stages that are chosen, and the boxes are drawn from it once. What
   the browser goes back or forward to is asked for anew, so that what is ticked, and then approved, is what it says. */
(function () {
  "use strict";
  window.addEventListener("popstate", function (event) {
    if (event.isTrusted && document.getElementById("approve") && window.location.pathname === "/plan") {
      window.location.reload();
    }
  });
})();
