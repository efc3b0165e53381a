// What the benchmark of widgets measures inside a page of JupyterLab: from an event on, until it is on the screen.
(() => {
  const painted = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))));
  const when = (condition) =>
    new Promise((done) => {
      const look = () => (condition() ? painted().then(done) : requestAnimationFrame(look));
      look();
    });
  const cell = () => window.jupyterapp.shell.currentWidget.content.widgets.find((each) => each.model.sharedModel.source.startsWith("display"));
  const output = () => cell().outputArea.node;
  const shadow = (selector) => {
    for (const element of output().querySelectorAll("*")) if (element.shadowRoot?.querySelector(selector)) return element.shadowRoot;
    return null;
  };
  const inside = () => output().querySelector("[data-treeviz-widget]")?.shadowRoot;
  const row = (name) => [...(inside()?.querySelectorAll("[role=treeitem]") ?? [])].find((each) => each.querySelector(".key")?.innerText === name);
  const ipytree = (name) => [...output().querySelectorAll(".jstree-node")].find((each) => each.querySelector(":scope > .jstree-anchor")?.innerText.trim() === name);
  const header = (name) => [...output().querySelectorAll(".jupyter-widget-Collapse-header")].find((each) => each.innerText.trim() === name);
  const label = () => [...(shadow("input.foldable_node_toggle")?.querySelectorAll("label") ?? [])].filter((each) => each.getBoundingClientRect().width)[1];

  // Of each tool: whether something can be clicked; where the arrow of the wide node is; whether that is open; where it is selected.
  const tools = {
    treeviz: {
      is_there: () => !!inside()?.querySelector("[role=treeitem]"),
      arrow: () => at(row("layers"), (box, each) => [parseFloat(each.firstChild.style.getPropertyValue("--indent")) + 10, box.height / 2]),
      is_open: () => row("layers")?.getAttribute("aria-expanded") === "true",
      selectable: () => at(row("layers"), (box) => [box.width / 2, box.height / 2]),
    },
    ipytree: {
      is_there: () => !!ipytree("layers"),
      arrow: () => at(ipytree("layers")?.querySelector(".jstree-ocl")),
      is_open: () => !!ipytree("layers")?.classList.contains("jstree-open"),
      selectable: () => at(ipytree("layers")?.querySelector(".jstree-anchor")),
    },
    accordion: {
      is_there: () => !!header("layers"),
      arrow: () => at(header("layers")),
      is_open: () => !!header("[0]")?.getBoundingClientRect().height,
      selectable: () => at(header("layers")),
    },
    treescope: {
      is_there: () => !!shadow("input.foldable_node_toggle"),
      arrow: () => at(label()),
      is_open: () => label()?.closest("*").parentElement.querySelector("input.foldable_node_toggle")?.checked ?? false,
      selectable: () => null,
    },
  };

  tools.render = { is_there: () => !!shadow("[role=treeitem]") }; // until its first row only

  function at(element, place = (box) => [box.width / 2, box.height / 2]) {
    element?.scrollIntoView({ block: "nearest" });
    const box = element?.getBoundingClientRect();
    const [x, y] = box ? place(box, element) : [];
    return box && [box.x + x, box.y + y];
  }

  window.bench = {
    tools,
    /** Where to click, when nothing moves any more. */
    async place(tool, what) {
      tools[tool][what]();
      await painted();
      return tools[tool][what]();
    },
    /** Run the cell until its first row can be seen, in ms. */
    async show(tool) {
      const { commands, shell } = window.jupyterapp;
      const notebook = shell.currentWidget.content;
      notebook.activeCellIndex = notebook.widgets.indexOf(cell());
      await commands.execute("notebook:clear-cell-output");
      await when(() => !tools[tool].is_there());
      const start = performance.now();
      const ran = commands.execute("notebook:run-cell");
      const end = await when(tools[tool].is_there);
      await ran;
      return end - start;
    },
    /** `bench.over` becomes the ms from the next such event on until the condition holds and is painted. */
    arm(event, condition) {
      window.bench.over = new Promise((done) => {
        const heard = (told) => {
          window.bench.at = performance.timeOrigin + told.timeStamp;
          when(condition).then((end) => done(end - told.timeStamp));
        };
        window.addEventListener(event, heard, { capture: true, once: true });
      });
    },
    arm_toggle: (tool) => {
      const was_open = tools[tool].is_open();
      window.bench.arm("pointerdown", () => tools[tool].is_open() !== was_open);
    },
    arm_search: (said) => window.bench.arm("input", () => inside().querySelector("output").innerText.includes(said)),
    n_elements() {
      let n = 0;
      for (const roots = [output()]; roots.length; ) {
        const elements = roots.pop().querySelectorAll("*");
        n += elements.length;
        for (const element of elements) if (element.shadowRoot) roots.push(element.shadowRoot);
      }
      return n;
    },
  };
})();
