// @ts-check
// Unpacks the deflated front end and runs it as an inline script of the page. It uses neither the network nor a blob, so that
// a content security policy can name it by its hash.

/** @type {(block: Element) => Promise<void>} */
async function run(block) {
  const text = block.textContent ?? "";
  const bytes = new Uint8Array(text.length * 0.8);
  // Five characters hold four bytes; see bundle.py. A typed array ignores what is beyond its end.
  let word = 0;
  Array.from(`${text}~~~~`, (character, i) => {
    const code = character.charCodeAt(0);
    word = (i % 5 && word * 85) + code - 40 - +(code > 60) - +(code > 92);
    for (let j = 0; i % 5 > 3 && j < 4; j++) bytes[((i - 4) / 5) * 4 + j] = word >> (24 - 8 * j);
  });
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const script = document.createElement("script");
  script.type = "module";
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  script.remove();
}

for (const block of /** @type {NodeListOf<HTMLScriptElement>} */ (document.querySelectorAll("script[type='text/treeviz']"))) {
  run(block).catch((error) => block.after(`The interactive view cannot start: ${error.message}.`));
  block.type = "text/treeviz-ran";
}
