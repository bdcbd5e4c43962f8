// What `memagent view` has put into the page: gzip in base64, line by line.

const PIECE = 1 << 20; // characters of base64, a multiple of 4

/** The content of an embedded element as a blob, or null if the page has none of this name. */
export async function readEmbedded(id) {
  const script = document.getElementById(id);
  if (!script) return null;
  const content = script.textContent.trim();
  script.remove(); // it may be large
  const parts = [];
  for (let start = 0; start < content.length; start += PIECE) {
    const raw = atob(content.slice(start, start + PIECE));
    const bytes = new Uint8Array(raw.length);
    for (let index = 0; index < raw.length; index += 1) bytes[index] = raw.charCodeAt(index);
    parts.push(bytes);
  }
  const unpacked = new Blob(parts).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(unpacked).blob();
}
