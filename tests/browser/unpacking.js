// How many payloads this page is unpacking, for at_rest.js: what comes of that comes in no frame.
{
  window.n_unpacking = 0;
  const read = Response.prototype.arrayBuffer;
  Response.prototype.arrayBuffer = function () {
    window.n_unpacking++;
    // in a task of its own: whoever waited for the bytes has done with them by then
    return read.call(this).finally(() => setTimeout(() => window.n_unpacking--));
  };
}
