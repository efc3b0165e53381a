// @ts-check
// The keyboard, as the WAI-ARIA pattern for trees has it.

/** @param {import("./view.js").View} view @param {HTMLInputElement} search */
export function listen_to_keys(view, search) {
  const { root, rows, tree } = view;
  let typed = "";
  let timer = 0;

  /** Go to the next row whose key starts with what was typed, or else with the last letter. */
  const type_ahead = (letter) => {
    clearTimeout(timer);
    timer = setTimeout(() => (typed = ""), 700);
    for (const start of new Set([typed + letter, letter])) {
      typed = start.toLowerCase();
      const from = rows.index(view.active) + +(typed.length === 1);
      for (let i = 0; i < rows.count; i++) {
        const row = rows.visible[(from + i) % rows.count];
        if (tree.label(row).toLowerCase().replace(/^[.[']+/, "").startsWith(typed)) return view.go(row);
      }
    }
  };

  const right = () => {
    const { active } = view;
    if (!rows.has_children(active)) return;
    if (!rows.is_open(active)) view.set_open(active, true);
    else view.go(rows.visible[rows.index(active) + 1]);
  };

  const left = () => {
    const { active } = view;
    if (rows.is_open(active)) view.set_open(active, false);
    else if (active) view.go(tree.parent[active]);
  };

  /** Open the active row and its siblings. */
  const star = () => {
    const parent = tree.parent[view.active];
    const end = parent < 0 ? tree.n : tree.end[parent];
    for (let row = parent + 1; row < end; row = tree.end[row]) rows.opened[row] = 1;
    view.update(view.active);
  };

  /** @param {KeyboardEvent} event @returns {boolean} whether the key meant something */
  const in_tree = (event) => {
    const { key, shiftKey, altKey } = event;
    const control = event.ctrlKey || event.metaKey;
    const here = rows.index(view.active);
    const page = view.grid.n_in_sight - 1;
    const goals = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: rows.count - 1, PageDown: here + page, PageUp: here - page };
    if (altKey) return false;
    if (key.length > 1) typed = "";
    if (key in goals) {
      const goal = rows.visible[Math.max(0, Math.min(rows.count - 1, goals[key]))];
      view.go(goal, shiftKey ? "range" : control ? "none" : "one");
    } else if (control) {
      if (key.toLowerCase() !== "c" || getSelection()?.toString()) return false;
      view.copy_paths("expression");
    } else if (key === "ArrowRight") right();
    else if (key === "ArrowLeft") left();
    else if (key === "Enter") rows.has_children(view.active) ? view.toggle(view.active) : view.go(view.active);
    else if (key === " ") view.go(view.active, "add");
    else if (key === "*") star();
    else if (key === "/") search.focus();
    else if (key === "Escape") view.show_detail(-1);
    else if (key.length === 1) type_ahead(key);
    else return false;
    return true;
  };

  /** @param {KeyboardEvent} event */
  const in_search = (event) => {
    if (event.key === "Enter") view.next_hit(event.shiftKey ? -1 : 1);
    else if (event.key === "ArrowDown") view.grid.tree.focus();
    else if (event.key === "Escape") {
      if (search.value) view.search((search.value = ""));
      view.grid.tree.focus();
    } else return false;
    return true;
  };

  const on_key = (/** @type {KeyboardEvent} */ event) => {
    // Nothing typed in here is meant for the notebook around it.
    event.stopPropagation();
    const target = event.composedPath()[0];
    const find = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "f";
    if (find) (search.focus(), search.select());
    else if (event.key === "F3") view.next_hit(event.shiftKey ? -1 : 1);
    else if (target === search) {
      if (!in_search(event)) return;
    } else if (target === view.grid.tree) {
      if (!in_tree(event)) return;
    } else if (event.key === "Escape") view.show_detail(-1);
    else return;
    event.preventDefault();
  };
  root.addEventListener("keydown", on_key);
  for (const type of ["keyup", "keypress"]) root.addEventListener(type, (event) => event.stopPropagation());
}
