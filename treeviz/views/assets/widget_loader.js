// @ts-check
// The module of a widget, unpacked. Behind PACKED, its text, which travels deflated with every widget.
const bytes = Uint8Array.from(atob(PACKED), (character) => character.charCodeAt(0));
const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
const url = URL.createObjectURL(new Blob([await new Response(stream).text()], { type: "text/javascript" }));
const { default: widget } = await import(url);
URL.revokeObjectURL(url);
export default widget;
