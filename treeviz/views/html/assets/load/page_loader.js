// @ts-check
// Unpacks the deflated front end and runs it as an inline script of the page. It uses neither the network nor a blob, so that
// a content security policy can name it by its hash.
import { bytesOf } from "./base91.js";

// The front end, a script of its own, reads the data of its hosts with it. The number is FORMAT in tree.js.
/** @type {any} */ (document)["treeviz 7"] = bytesOf;
/** @type {NodeListOf<HTMLScriptElement>} */ (document.querySelectorAll("[type$=treeviz]")).forEach(async (block) => {
  block.type = "ran";
  try {
    const stream = /** @type {any} */ (new Response(bytesOf(block.text)).body).pipeThrough(new DecompressionStream("deflate-raw"));
    const script = document.createElement("script");
    script.text = await new Response(stream).text();
    document.head.append(script);
    script.remove();
  } catch (error) {
    block.after(`The view cannot start (old browser?): ${error.message}`);
  }
});
