// The text of a document by spans of characters, and files that turn out to be that document.

import { Unusable } from "./journal.js";
import { Places } from "./places.js";

const STRIDE = 1024;
const WIDE = /[\ud800-\udbff][\udc00-\udfff]/;
const CONVERTED = /\.(jsonl|ndjson|x?html?|pdf|doc[xm]|ppt[xm]|xls[xm]|epub|odt|rtf|eml|mht|mhtml|mbox)(\.gz)?$/i;
const HOW = "memagent view TRACE makes a page that has the text in it";

/** A text whose offsets count code points, as journals do, and not the UTF-16 units of strings. */
export class Characters {
  constructor(text) {
    this.text = text;
    this.units = WIDE.test(text) ? indexUnits(text) : null;
    this.length = this.units ? this.units.length : text.length;
  }

  slice(start, end) {
    return this.text.slice(this.unitAt(start), this.unitAt(end));
  }

  /** The line at an offset, counted from 1 at `from`, where its file begins. */
  lineAt(offset, from = 0) {
    return this.places.lineAt(this.unitAt(offset), this.unitAt(from));
  }

  /** The heading above an offset in the file that begins at `from`; "" without any. */
  headingAt(offset, from = 0) {
    return this.places.headingAt(this.unitAt(offset), this.unitAt(from));
  }

  /** The lines and headings, which are looked for once. */
  get places() {
    return (this.knownPlaces ??= new Places(this.text));
  }

  /** The UTF-16 unit where a code point begins. */
  unitAt(offset) {
    if (!this.units) return offset;
    if (offset >= this.length) return this.text.length;
    let unit = this.units.marks[Math.floor(offset / STRIDE)];
    for (let left = offset % STRIDE; left > 0; left -= 1) unit += unitsAt(this.text, unit);
    return unit;
  }
}

function unitsAt(text, unit) {
  return text.codePointAt(unit) > 0xffff ? 2 : 1;
}

/** The unit of every so many code points, and how many code points there are. */
function indexUnits(text) {
  const marks = [];
  let length = 0;
  for (let unit = 0; unit < text.length; unit += unitsAt(text, unit)) {
    if (length % STRIDE === 0) marks.push(unit);
    length += 1;
  }
  return { marks, length };
}

/** The files' text, if they are the document of a journal. Throws `Unusable` that says why they are not. */
export async function textOf(files, trace) {
  const names = trace.header.document?.sources ?? [];
  if (!crypto.subtle) {
    throw new Unusable(`files cannot be checked on a page that came over plain HTTP: ${HOW}`);
  }
  const ordered = names.length === 1 && files.length === 1 ? [...files] : sortFiles(files, names);
  const contents = await Promise.all(ordered.map((file) => file.arrayBuffer()));
  if ((await fingerprintOf(contents)) !== trace.header.document.sha256) {
    const given = ordered.map((file) => file.name).join(", ");
    throw new Unusable(`${given}: not what was read, or changed since (its SHA-256 is another)`);
  }
  const text = new Characters(contents.map((content, index) => decodeText(content, ordered[index].name)).join(""));
  if (text.length < trace.end) throw new Unusable(`${names.join(", ")} was read in another form: ${HOW}`);
  return text;
}

/** The files by the names of the sources. */
function sortFiles(files, names) {
  const last = (path) => path.split(/[/\\]/).at(-1);
  const missing = [];
  const ordered = names.map((name) => {
    const matches = files.filter((file) => file.name === last(name));
    if (matches.length !== 1) missing.push(last(name));
    return matches[0];
  });
  if (missing.length) {
    const some = missing.slice(0, 5).join(", ") + (missing.length > 5 ? ", ..." : "");
    throw new Unusable(`drop all ${names.length} files that were read at once; missing or ambiguous: ${some}`);
  }
  return ordered;
}

/** SHA-256 over the SHA-256 of each file, as journals have it. */
async function fingerprintOf(contents) {
  const digests = new Uint8Array(32 * contents.length);
  for (const [index, content] of contents.entries()) {
    digests.set(new Uint8Array(await crypto.subtle.digest("SHA-256", content)), 32 * index);
  }
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", digests));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The text of a file that memagent reads as it stands. Throws `Unusable` for another. */
function decodeText(buffer, name) {
  const bytes = new Uint8Array(buffer);
  const starts = (...head) => head.every((byte, index) => bytes[index] === byte);
  const packed = starts(0x1f, 0x8b) || starts(0x25, 0x50, 0x44, 0x46) || starts(0x7b, 0x5c, 0x72, 0x74, 0x66);
  if (packed || CONVERTED.test(name)) throw new Unusable(`${name} is converted before it is read: ${HOW}`);
  const wide = starts(0xff, 0xfe, 0, 0) ? null : starts(0xff, 0xfe) ? "utf-16le" : starts(0xfe, 0xff) && "utf-16be";
  try {
    const text = new TextDecoder(wide || "utf-8", { fatal: true }).decode(buffer);
    if (wide !== null && !text.includes("\0")) return text;
  } catch {
    // reported below
  }
  throw new Unusable(`${name} is in an encoding that the page does not know: ${HOW}`);
}
