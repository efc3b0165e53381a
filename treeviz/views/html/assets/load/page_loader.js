// @ts-check
// Unpacks the deflated front end and runs it as an inline script of the page. It uses neither the network nor a blob, so that
// a content security policy can name it by its hash.

/** The bytes of a script: characters.py makes two characters of 13 bits. @param {Element} block */
function bytesOf(block) {
  const codes = new TextEncoder().encode(`${block.textContent}#`); // it completes a pair
  // The bytes are written over the codes, of which there are more; a call for each would be slow while the page starts.
  for (let i = 0, at = 0, low = 0, word = 0, nBits = 0; i < codes.length; i++) {
    const code = codes[i];
    const digit = code < 33 ? 1 : code < 34 ? 57 : code > 125 ? 25 : code - 35;
    if (i % 2) {
      word |= (low + 91 * digit) << nBits;
      for (nBits += 13; nBits > 7; nBits -= 8, word >>= 8) codes[at++] = word;
    } else low = digit;
  }
  return codes.subarray(0, ((codes.length - 1) * 13) / 16);
}

for (const data of /** @type {NodeListOf<any>} */ (document.querySelectorAll("[data-treeviz]>script"))) data.bytes = () => bytesOf(data);
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
    block.after(`The interactive view cannot start: the browser is too old or the page damaged (${error.message}).`);
  }
});
