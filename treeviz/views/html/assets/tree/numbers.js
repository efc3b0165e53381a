// @ts-check
// Formats counts, bytes and numbers as treeviz/tree/numbers.py does.

/** @type {(n: number, units: string[]) => string} */
function scaled(n, units) {
  const size = Math.abs(n);
  let i = 0;
  let tenths = 0;
  do {
    const scale = 1000 ** ++i;
    tenths = Math.floor((10 * size + scale / 2) / scale);
  } while (tenths >= 10000 && i < units.length);
  return `${n < 0 ? "-" : ""}${Math.floor(tenths / 10)}.${tenths % 10} ${units[i - 1]}`;
}

/** @type {(n: number) => string} "1,234,567" of a whole number; toLocaleString costs ten milliseconds when first called */
export const wholeText = (n) => String(n).replace(/\B(?=(?:\d{3})+$)/g, ",");

/** @type {(n: number) => string} "1,234", "124.4 M", "1e308" */
export const countText = (n) =>
  Math.abs(n) < 1e5 ? wholeText(n) : Math.abs(n) < 1e24 ? scaled(n, ["K", "M", "B", "T", "P", "E"]) : numberText(n);

/** @type {(n: number) => string} "512 B", "497.8 MB" */
export const bytesText = (n) =>
  Math.abs(n) < 1000 ? `${n} B` : Math.abs(n) < 1e24 ? scaled(n, ["kB", "MB", "GB", "TB", "PB", "EB"]) : `${numberText(n)} B`;

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
