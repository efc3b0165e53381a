// @ts-check
// Unpacks the deflated front end and runs it as an inline script of the page. It uses neither the network nor a blob, so that
// a content security policy can name it by its hash.

/** The bytes of a script, from the last one to the first: characters.py made a text of them. @param {Element} block */
function bytesOf(block) {
  const text = /** @type {string} */ (block.textContent);
  const bytes = new Uint8Array(3 * text.length);
  let at = bytes.length;
  let state = 0;
  for (let i = at / 3; i--; ) {
    let code = text.charCodeAt(i);
    code = code < 34 ? 32 * code - 964 : code;
    // At the beginning of a chunk all is written but the 1 that the state was at first.
    const share = code > 2047 ? 1 : code > 160 ? 112 : code > 127 ? 1 / 128 : 12600;
    for (; state >= 256 * share; state >>= 8) bytes[--at] = state;
    state = share < 1 ? 0 : ((state / share) | 0) * 1412436 + (state % share) + share * code - (code > 2047 ? 13312 : code > 127 ? -23860 : 187764);
  }
  return bytes.subarray(at);
}

// The front end, a script of its own, reads the data of its hosts with it. The number is FORMAT in tree.js.
/** @type {any} */ (self)[Symbol.for("treeviz 5")] = bytesOf;
/** @type {NodeListOf<HTMLScriptElement>} */ (document.querySelectorAll("[type$=treeviz]")).forEach(async (block) => {
  block.type = "ran";
  try {
    const stream = /** @type {any} */ (new Response(bytesOf(block)).body).pipeThrough(new DecompressionStream("deflate-raw"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    script.remove();
  } catch (error) {
    block.after(`The view cannot start (old browser or damaged page): ${error.message}`);
  }
});
