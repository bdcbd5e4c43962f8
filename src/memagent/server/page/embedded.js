// What `memagent view` has put into the page: gzip in base64, line by line.

const PIECE = 1 << 20; // characters of base64, a multiple of 4

/** The content of an embedded element as a blob, or null if the page has none of this name. */
export async function embedded(id) {
  const element = document.getElementById(id);
  if (!element) return null;
  const content = element.textContent.trim();
  element.remove(); // it may be large
  const parts = [];
  for (let start = 0; start < content.length; start += PIECE) {
    const raw = atob(content.slice(start, start + PIECE));
    const bytes = new Uint8Array(raw.length);
    for (let place = 0; place < raw.length; place += 1) bytes[place] = raw.charCodeAt(place);
    parts.push(bytes);
  }
  const unpacked = new Blob(parts).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(unpacked).blob();
}
