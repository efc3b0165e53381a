// @ts-check
// Reads bytes from the text that `as_text` in bundle.py makes of them.

/** @param {string} text @returns {Uint8Array} */
export const bytesOf = (text) => {
  const bytes = new Uint8Array((text.length * 13) / 16);
  let at = 0;
  let word = 0;
  let n = 0;
  const digit = (i) => {
    const code = text.charCodeAt(i);
    // A space, ! and ~ stand for &, < and a backslash. The last digit may have no second one: NaN | 0 is 0.
    return ((code < 34 ? 22 * code - 666 : code > 125 ? 92 : code) - 35) | 0;
  };
  for (let i = 0; i < text.length; i += 2) {
    word += (digit(i) + 91 * digit(i + 1)) << n;
    for (n += 13; n > 7; n -= 8) {
      bytes[at++] = word;
      word >>= 8;
    }
  }
  return bytes;
};
