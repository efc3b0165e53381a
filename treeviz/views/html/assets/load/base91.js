// @ts-check
// Reads bytes from the text that `as_text` in bundle.py makes of them.

/** @param {string} text @returns {Uint8Array} */
export function bytesOf(text) {
  const bytes = new Uint8Array((text.length * 13) / 16);
  let at = 0;
  let word = 0;
  let n = 0;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    // A space, ! and ~ stand for &, < and a backslash.
    const digit = (code < 34 ? 22 * code - 666 : code > 125 ? 92 : code) - 35;
    word += (i % 2 ? 91 : 1) * digit << n;
    if (i % 2) for (n += 13; n > 7; n -= 8) {
      bytes[at++] = word;
      word >>= 8;
    }
  }
  bytes[at] = word; // a digit without a second one
  return bytes;
}
