// `swap(html)` shows another document that has the same head in place of this one, in half of the time that it takes to load
// it. It stands in a <main>; its scripts run anew. What the one before listened to and observed is so no more, and it is freed.
{
  let shown = new AbortController();
  const listen = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (name, listener, options) {
    const target = this ?? window;
    if (target === window || target === document || target instanceof MediaQueryList) {
      const { signal, ...others } = typeof options === "boolean" ? { capture: options } : options ?? {};
      options = { ...others, signal: AbortSignal.any([shown.signal, signal].filter(Boolean)) };
    }
    listen.call(target, name, listener, options);
  };
  const observe = MutationObserver.prototype.observe;
  const observers = new Set();
  MutationObserver.prototype.observe = function (target, options) {
    observers.add(this);
    observe.call(this, target, options);
  };
  window.swap = (html) => {
    observers.forEach((observer) => observer.disconnect());
    observers.clear();
    shown.abort();
    shown = new AbortController();
    const fresh = new DOMParser().parseFromString(html, "text/html");
    document.title = fresh.title;
    for (const script of document.querySelectorAll("head > script, body > script")) script.remove();
    document.querySelector("main").replaceWith(fresh.querySelector("main"));
    for (const { type, text } of fresh.querySelectorAll("body > script"))
      document.body.append(Object.assign(document.createElement("script"), { type, text }));
    scrollTo(0, 0);
  };
}
