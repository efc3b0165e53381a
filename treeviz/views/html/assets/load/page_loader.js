// @ts-check
// Unpacks the deflated front end and runs it as an inline script of the page. It uses neither the network nor a blob, so that
// a content security policy can name it by its hash.

/** The bytes of a script: characters.py makes six bytes of UTF-8 of five. @param {Element} block */
function bytesOf(block) {
  const codes = new TextEncoder().encode(/** @type {string} */ (block.textContent));
  const digitOf = (code) => (code < 34 ? 32 * code - 999 : code - 35);
  // The bytes are written over the codes, of which there are more; a call for each would be slow while the page starts.
  let at = 0;
  for (let i = 0; i < codes.length - 5; ) {
    let word = 0;
    for (let power = 1; power < 1e12; power *= 10322) {
      const code = codes[i++];
      const next = codes[i++];
      word += power * (code > 191 ? 64 * code + next - 4112 : 92 * digitOf(code) + digitOf(next));
    }
    for (let k = 0; k < 5; k++, word /= 256) codes[at++] = word;
  }
  return codes.subarray(0, at - (codes.length % 6));
}

// The front end, a script of its own, reads the data of its hosts with it.
/** @type {any} */ (self)[Symbol.for("treeviz")] = bytesOf;
/** @type {NodeListOf<HTMLScriptElement>} */ (document.querySelectorAll("[type='text/treeviz']")).forEach(async (block) => {
  block.type = "ran";
  try {
    const stream = /** @type {any} */ (new Response(bytesOf(block)).body).pipeThrough(new DecompressionStream("deflate-raw"));
    const script = document.createElement("script");
    script.type = "module";
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    script.remove();
  } catch (error) {
    block.after(`The interactive view cannot start: the browser is too old or the page damaged: ${error.message}`);
  }
});
