// A page that is read from a folder may start no worker. The search of the site needs one, so here a worker is a hidden
// frame: its script runs in the frame, and messages go to and fro as events. Nothing of this is used on a server.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, next) => before.then(() => this.load(inside.document, next)), Promise.resolve());
      this.sent = this.load(inside.document, new URL(address, location.href).href).then(() => inside);
    }

    load(page, address) {
      return new Promise((resolve, reject) => {
        const script = page.createElement("script");
        Object.assign(script, { src: address, onload: resolve, onerror: reject });
        page.body.append(script);
      });
    }

    postMessage(data) {
      this.sent.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
