// @ts-check
// Helpers for the DOM: elements, menus, the clipboard and the theme.

/**
 * An element with attributes and children. An attribute that is true has no value, one that is a function is an event listener.
 * Strings become text nodes and are never parsed as HTML.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node | string)} children
 * @returns {any}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** A button that opens a list; `make` builds the list each time it opens. @param {string} title @param {() => Node[]} make @param {string} [label] */
export function menu(title, make, label = title) {
  // It takes the focus of a click on its texts, so that the focus leaves it only with a click outside.
  const list = h("div", { class: "list", role: "group", "aria-label": label, tabindex: "-1" });
  const element = h("details", { class: "menu", toggle: () => element.open && list.replaceChildren(...make()) }, h("summary", { title: label }, title), list);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !element.open) return;
    event.stopPropagation();
    element.open = false;
    element.firstChild.focus();
  });
  element.addEventListener("focusout", (event) => element.contains(event.relatedTarget) || (element.open = false));
  return element;
}

/** Put text on the clipboard, also where the browser has no navigator.clipboard. @param {string} text @param {Node} place @returns {Promise<boolean>} */
export async function copy(text, place) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { style: "position:fixed;left:-9999px" });
    const focused = /** @type {ShadowRoot} */ (place.getRootNode()).activeElement;
    area.value = text;
    place.appendChild(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    /** @type {HTMLElement | null} */ (focused)?.focus();
    return copied;
  }
}

/** Follow the theme of the host: the view is dark where the text of the host is light. @param {HTMLElement} host @param {HTMLElement} root @param {AbortSignal} signal */
export function followTheme(host, root, signal) {
  const update = () => {
    const [red, green] = getComputedStyle(host).color.match(/[\d.]+/g)?.map(Number) ?? [0, 0];
    root.classList.toggle("dark", red + 2 * green > 420); // about its lightness
  };
  // JupyterLab loads the style sheet of a theme a moment after it sets the attribute.
  const soon = () => (update(), setTimeout(update, 300));
  const observer = new MutationObserver(soon);
  for (const element of [document.documentElement, document.body]) observer.observe(element, { attributes: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon, { signal });
  // Paper is white: a browser prints no dark page, but for the view.
  addEventListener("beforeprint", () => root.classList.contains("page") && root.classList.remove("dark"), { signal });
  addEventListener("afterprint", update, { signal });
  signal.addEventListener("abort", () => observer.disconnect());
  update();
}
