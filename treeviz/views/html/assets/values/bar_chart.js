// @ts-check
// A bar chart as a picture.

/** @param {ArrayLike<number>} heights from 0 to 255 @param {string} label */
export function barChart(heights, label) {
  const make = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    return element;
  };
  const path = Array.from(heights, (height, i) => `M${i} 255V${255 - height}h.85V255z`).join("");
  const viewBox = `0 0 ${heights.length} 255`;
  const chart = make("svg", { viewBox, preserveAspectRatio: "none", class: "bars", role: "img", "aria-label": label });
  chart.append(make("path", { d: path }));
  return chart;
}
