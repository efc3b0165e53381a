// @ts-check
// Unpack the front end, which travels deflated, and run it as a script of the page. It is not taken from
// the network nor from a blob: where the page's policy names the scripts that may run, it names this one, too.

/** @type {(block: Element) => Promise<void>} */
async function run(block) {
  const bytes = Uint8Array.from(atob(block.textContent ?? ""), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const script = document.createElement("script");
  script.type = "module";
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  script.remove();
}

for (const block of document.querySelectorAll("script[type='text/treeviz']")) {
  run(block).catch((error) => block.insertAdjacentText("afterend", `The interactive view cannot start: ${error.message}.`));
  block.setAttribute("type", "text/treeviz-ran");
}
