// What a page does in its frames is done late, as on a slow machine: LATE_MS is put in front of this script.
// What comes first in a frame still comes first; a test that does not wait for the frame reads what stood before it.
{
  const late = (run) => (...told) => setTimeout(() => run(...told), LATE_MS);
  const request = requestAnimationFrame;
  window.requestAnimationFrame = (run) => request(late(run));
  window.ResizeObserver = class extends ResizeObserver {
    constructor(run) {
      super(late(run));
    }
  };
  const listen = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (type, run, options) {
    const is_late = typeof run === "function" && (type === "scroll" || type === "toggle" || this instanceof MediaQueryList);
    return listen.call(this, type, is_late ? late(run) : run, options);
  };
  const write = globalThis.Clipboard?.prototype.writeText;
  if (write) Clipboard.prototype.writeText = function (text) {
    return new Promise((done) => setTimeout(done, LATE_MS)).then(() => write.call(this, text));
  };
  const read = Response.prototype.arrayBuffer;
  Response.prototype.arrayBuffer = function () {
    return new Promise((done) => setTimeout(done, 5 * LATE_MS)).then(() => read.call(this));
  };
}
