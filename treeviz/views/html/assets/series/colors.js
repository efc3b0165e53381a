// @ts-check
// The colors of the heat map: viridis (Smith and van der Walt 2015), whose lightness grows evenly, with color blindness too;
// for what is relative to a median, two hues (after PuOr of ColorBrewer) that meet in the background's.

const VIRIDIS = "440154 481a6c 472f7d 414487 39568c 31688e 2a788e 23888e 1f988b 22a884 35b779 54c568 7ad151 a5db36 d2e21b fde725";
const DIVERGING = ["542788 8073ac b2abd2 dcdaea efefef f8e3c4 fdb863 e08214 b35806", "c3b4f7 9887d6 655a98 3c3854 2a2d33 4d3d25 835b1e c08427 f7b552"];

/** @type {Record<string, {pixels: Uint32Array, gradient: string}>} */
const palettes = {};

/** 256 colors as opaque pixels, little-endian RGBA, and as a gradient of CSS. @param {boolean} isDiverging @param {boolean} isDark */
export function paletteOf(isDiverging, isDark) {
  const text = isDiverging ? DIVERGING[+isDark] : VIRIDIS;
  return (palettes[text] ??= { pixels: pixelsOf(text.split(" ")), gradient: `linear-gradient(90deg,${text.replace(/\w+/g, "#$&,").slice(0, -1)})` });
}

/** @param {string[]} stops */
function pixelsOf(stops) {
  const parts = stops.map((text) => [0, 2, 4].map((at) => parseInt(text.slice(at, at + 2), 16)));
  return Uint32Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (parts.length - 1);
    const below = Math.min(parts.length - 2, Math.floor(at));
    const [red, green, blue] = parts[below].map((part, k) => Math.round(part + (at - below) * (parts[below + 1][k] - part)));
    return 0xff000000 | (blue << 16) | (green << 8) | red;
  });
}

/** The current colors of the theme, or of forced-colors mode. @param {HTMLElement} root */
export function themeColors(root) {
  const probe = root.appendChild(document.createElement("i"));
  const color = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const colors = { text: color("--text"), background: color("--background"), dim: color("--dim"), accent: color("--accent"), bad: color("--bad"), badGround: color("--bad-ground") };
  probe.remove();
  return colors;
}

/** The scale of heat maps, distributions and drawings. */
export const PALETTE = paletteOf(false, false).pixels;
export const GRADIENT = paletteOf(false, false).gradient;
