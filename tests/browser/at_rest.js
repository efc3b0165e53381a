// Wait until the views of this page have come to rest: for two frames in a row nothing has changed in them, and nothing
// was being unpacked (unpacking.js).
// All that a view does later, it does in a frame: first the scroll events, then media queries, what was asked for
// with requestAnimationFrame, and what a ResizeObserver sees. What this causes comes in the next frame at the latest.
async () => {
  const roots = [...document.querySelectorAll(".treeviz")].flatMap((host) => host.shadowRoot ?? []);
  const scrollers = roots.flatMap((root) => [...root.querySelectorAll(".scroller")]);
  const places = () => scrollers.map((element) => element.scrollTop).join();
  let has_changed = false;
  const observer = new MutationObserver(() => (has_changed = true));
  for (const root of roots)
    observer.observe(root, { subtree: true, childList: true, characterData: true, attributes: true });
  for (let n_quiet = 0, n_frames = 0; n_quiet < 2; n_frames++) {
    if (n_frames > 5000) throw new Error("the view does not come to rest");
    const before = places();
    await new Promise(requestAnimationFrame);
    has_changed ||= observer.takeRecords().length > 0 || places() !== before;
    n_quiet = has_changed || window.n_unpacking ? 0 : n_quiet + 1;
    has_changed = false;
  }
  observer.disconnect();
}
