// @ts-check
// Unpacks the deflated front end and runs it as an inline script of the page. It uses neither the network nor a blob, so that
// a content security policy can name it by its hash.

/** Five characters hold four bytes; see bundle.py. @type {(text: string) => Uint8Array} */
function bytesOf(text) {
  const n = Math.floor(text.length * 0.8);
  const words = new DataView(new ArrayBuffer(n + 8));
  for (let i = 0; i < text.length; i += 5) {
    let word = 0;
    for (const character of `${text.slice(i, i + 5)}~~~~`.slice(0, 5)) {
      const code = character.charCodeAt(0);
      word = word * 85 + code - 40 - +(code > 60) - +(code > 92);
    }
    words.setUint32(i * 0.8, word);
  }
  return new Uint8Array(words.buffer, 0, n);
}

/** @type {(block: Element) => Promise<void>} */
async function run(block) {
  const stream = new Blob([bytesOf(block.textContent ?? "")]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
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
