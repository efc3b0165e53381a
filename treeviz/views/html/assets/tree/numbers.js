// @ts-check
// Formats counts, bytes and numbers as treeviz/tree/numbers.py does.

/** A number below `least` with all its digits, others with a prefix; `unit` is that of all. @type {(n: number, least: number, prefixes: string, unit: string) => string} */
function scaled(n, least, prefixes, unit) {
  const size = Math.abs(n);
  if (size < least || !(size < 1e24)) return (size < least ? wholeText(n) : numberText(n)) + (unit && " " + unit);
  let i = 0;
  let tenths = 0;
  do {
    const scale = 1000 ** ++i;
    tenths = Math.floor((10 * size + scale / 2) / scale);
  } while (tenths >= 10000 && prefixes[i]);
  return `${n < 0 ? "-" : ""}${Math.floor(tenths / 10)}.${tenths % 10} ${prefixes[i - 1]}${unit}`;
}

/** @type {(n: number) => string} "1,234,567" of a whole number; toLocaleString costs ten milliseconds when first called */
export const wholeText = (n) => String(n).replace(/\B(?=(?:\d{3})+$)/g, ",");

/** @type {(n: number) => string} "1,234", "124.4 M", "1e308" */
export const countText = (n) => scaled(n, 1e5, "KMBTPE", "");

/** @type {(n: number) => string} "512 B", "497.8 MB" */
export const bytesText = (n) => scaled(n, 1000, "kMGTPE", "B");

/** @type {(x: number) => string} four significant digits */
export function numberText(x) {
  if (!Number.isFinite(x)) return x > 0 ? "inf" : x < 0 ? "-inf" : "NaN";
  const size = Math.abs(+x.toPrecision(4));
  if (size >= 10000 && Math.abs(x) < 999999.5) return x.toFixed(0);
  if (size >= 1e-4 && size < 10000) return String(+x.toPrecision(4));
  if (!size) return "0";
  const [digits, exponent] = x.toExponential(3).split("e");
  return `${+digits}e${+exponent}`;
}
