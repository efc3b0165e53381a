// @ts-check
// Reads bytes that bundle.py writes in the digits of base 85.

/** @param {string} text @returns {Uint8Array} */
export function bytesOf(text) {
  const { length } = text;
  const words = new DataView(new ArrayBuffer(length + 4));
  for (let i = 0, word = 0; i < length + 4; ) {
    const code = i < length ? text.charCodeAt(i) : 125;
    // !, # and % stand for <, > and a backslash.
    word = Math.imul(word, 85) + (code < 40 ? [60, 62, 92][code / 2 - 16.5] : code) - 41;
    if (++i % 5 === 0) {
      words.setUint32((i / 5) * 4 - 4, word);
      word = 0;
    }
  }
  return new Uint8Array(words.buffer, 0, length * 0.8);
}
