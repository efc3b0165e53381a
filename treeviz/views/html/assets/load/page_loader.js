// @ts-check
// Unpacks the deflated front end and runs it as an inline script of the page. It uses neither the network nor a blob, so that
// a content security policy can name it by its hash.

/** The bytes of a script: characters.py makes two characters of 13 bits. @param {Element} block */
function bytesOf(block) {
  const text = /** @type {string} */ (block.textContent);
  const bytes = new Uint8Array((text.length * 13) / 16);
  const digit = (i) => {
    const code = text.charCodeAt(i);
    return code < 33 ? 1 : code < 34 ? 57 : code > 125 ? 25 : code - 35;
  };
  // A typed array ignores what is beyond its end.
  for (let i = 0, at = 0, word = 0, nBits = 0; i < text.length; ) {
    word |= (digit(i++) + 91 * (digit(i++) | 0)) << nBits;
    for (nBits += 13; nBits > 7; nBits -= 8, word >>= 8) bytes[at++] = word;
  }
  return bytes;
}

/** @type {(block: Element) => Promise<void>} */
async function run(block) {
  const stream = /** @type {any} */ (new Response(bytesOf(block)).body).pipeThrough(new DecompressionStream("deflate-raw"));
  const script = document.createElement("script");
  script.type = "module";
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  script.remove();
}

for (const data of /** @type {NodeListOf<any>} */ (document.querySelectorAll("[data-treeviz]>script"))) data.bytes = () => bytesOf(data);
for (const block of /** @type {NodeListOf<HTMLScriptElement>} */ (document.querySelectorAll("[type='text/treeviz']"))) {
  run(block).catch((error) => block.after(`The interactive view cannot start: ${error.message}.`));
  block.type = "text/treeviz-ran";
}
