/* A session that has ended: the page is asked for again, and whoever keeps the door sends the reader to sign in. */
(function () {
  "use strict";
  var ask = window.fetch;
  window.fetch = function () {
    return ask.apply(this, arguments).then(function (answer) {
      if (answer.status === 401 && new URL(answer.url, window.location.href).origin === window.location.origin) {
        window.location.reload();
      }
      return answer;
    });
  };
})();
