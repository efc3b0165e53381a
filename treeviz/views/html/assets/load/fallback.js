// @ts-check
// Shows the static page in place of a widget that does not appear, and says why.
{
  const PATIENCE_MS = 3000;
  const BLOB = "Saved view: this page's security policy (CSP) forbids blob:, which live views need.";
  const NOBODY = "Saved view. Run the cell to explore live.";

  /** @param {HTMLElement} place */
  const watch = (place) => {
    const token = place.dataset.treevizFallback;
    const stop = new AbortController();
    const isHere = () => document.querySelector(`[data-treeviz-widget="${token}"]`) !== null;
    // In JupyterLab the output before ours is the widget; where its model is gone it says "model not found", and nothing else.
    const ofWidget = /** @type {HTMLElement | null | undefined} */ (place.closest(".jp-OutputArea-child")?.previousElementSibling);
    const showWidget = (isShown) => ofWidget && (ofWidget.style.display = isShown ? "" : "none");
    const leave = () => ((place.hidden = true), showWidget(true), stop.abort());
    /** @param {string} why */
    const stay = (why) => {
      place.hidden = false;
      if (/model not found/.test(ofWidget?.textContent ?? "")) showWidget(false);
      if (place.dataset.treevizAwake) return;
      place.dataset.treevizAwake = "true";
      const line = document.createElement("p");
      line.textContent = why;
      line.style.cssText = "margin:4px 0 8px;font-size:90%;opacity:.85";
      place.prepend(line);
      for (const host of /** @type {NodeListOf<HTMLElement>} */ (place.querySelectorAll("[data-treeviz-waiting]"))) host.dataset.treeviz = host.dataset.treevizWaiting;
      place.querySelector("script[type='text/treeviz-waiting']")?.setAttribute("type", "text/treeviz");
      const script = document.createElement("script");
      script.type = "module";
      script.textContent = place.querySelector("script[type='text/treeviz-loader']")?.textContent ?? "";
      place.append(script);
    };
    document.addEventListener("treeviz-widget", (event) => /** @type {CustomEvent} */ (event).detail === token && leave(), { signal: stop.signal });
    if (isHere()) return leave();
    const url = URL.createObjectURL(new Blob([""], { type: "text/javascript" }));
    import(url).then(
      () => setTimeout(() => stop.signal.aborted || isHere() || stay(NOBODY), inJupyter ? PATIENCE_MS : 0),
      () => stay(BLOB),
    );
    // Hidden at first, since the output would jump where the widget appears at once.
    place.hidden = inJupyter;
  };

  const inJupyter = document.getElementById("jupyter-config-data") !== null;
  for (const place of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-treeviz-fallback]:not([data-treeviz-watched])"))) {
    place.dataset.treevizWatched = "true";
    watch(place);
  }
}
