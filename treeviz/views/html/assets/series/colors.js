// @ts-check
// The colors of the heat map: cividis (Nuñez, Anderton and Renslow 2018), whose lightness grows evenly, with color blindness too.

const STOPS = "00224e 002e6a 1a386f 32436d 434e6c 535a6d 61656f 6f7073 7d7c78 8c8878 9b9476 aba072 bcae6c cdbb63 dec958 f0d846 fee838";

/** The 256 colors of the scale as opaque pixels: little-endian RGBA. */
export const PALETTE = new Uint32Array(256);

const stops = STOPS.split(" ").map((text) => [0, 2, 4].map((at) => parseInt(text.slice(at, at + 2), 16)));
for (let i = 0; i < 256; i++) {
  const at = (i / 255) * (stops.length - 1);
  const below = Math.min(stops.length - 2, Math.floor(at));
  const [red, green, blue] = stops[below].map((part, k) => Math.round(part + (at - below) * (stops[below + 1][k] - part)));
  PALETTE[i] = 0xff000000 | (blue << 16) | (green << 8) | red;
}

export const GRADIENT = `linear-gradient(90deg,${STOPS.split(" ").map((text) => `#${text}`).join()})`;

/** The current colors of the theme, or of forced-colors mode. @param {HTMLElement} root */
export function themeColors(root) {
  const probe = root.appendChild(document.createElement("i"));
  const color = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const colors = { text: color("--text"), background: color("--background"), dim: color("--dim"), accent: color("--accent"), bad: color("--bad") };
  probe.remove();
  return colors;
}
