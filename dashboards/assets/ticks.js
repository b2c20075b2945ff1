/* Dash marks a tick box as an option of a list, with the box inside it: a screen reader then says the one and hides the
   other (WAI-ARIA: an option has no parts that can be used). What remains is the box with its label, in a group. */
(function () {
  "use strict";
  function mend() {
    document.querySelectorAll(".tick[role=listbox], .tick [role=listbox]").forEach(function (list) {
      list.setAttribute("role", "group");
      list.removeAttribute("aria-multiselectable");
    });
    document.querySelectorAll(".tick [role=option], .tick [aria-selected]").forEach(function (label) {
      label.removeAttribute("role");
      label.removeAttribute("aria-selected");
    });
  }
  new MutationObserver(mend).observe(document.documentElement, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["role", "aria-selected"]
  });
})();
