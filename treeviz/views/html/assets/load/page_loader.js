// @ts-check
// Unpacks the deflated front end and runs it as an inline script of the page. It uses neither the network nor a blob, so that
// a content security policy can name it by its hash.

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
