// Reads a journal: JSON lines, whose checksums are left to Python. See docs/file-formats.md.

const FORMAT = 2;
const SLICE_BYTES = 1 << 20;
const NEWLINE = 10;
const BEGINNING = '{"type": "header"';

/** An error that people are shown: a file or a reply that cannot be used. */
export class Unusable extends Error {}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The object of a line, or null if it is none. */
function parseLine(bytes) {
  try {
    return JSON.parse(utf8.decode(bytes));
  } catch {
    return null;
  }
}

/** The lines of a blob as bytes; a last line that no newline ends is left out. */
async function* linesOf(blob) {
  let rest = new Uint8Array(0);
  for (let offset = 0; offset < blob.size; offset += SLICE_BYTES) {
    const fresh = new Uint8Array(await blob.slice(offset, offset + SLICE_BYTES).arrayBuffer());
    let bytes = fresh;
    if (rest.length) {
      bytes = new Uint8Array(rest.length + fresh.length);
      bytes.set(rest);
      bytes.set(fresh, rest.length);
    }
    let start = 0;
    for (let end = bytes.indexOf(NEWLINE, rest.length); end >= 0; end = bytes.indexOf(NEWLINE, start)) {
      yield bytes.subarray(start, end);
      start = end + 1;
    }
    rest = bytes.subarray(start);
  }
}

/** Whether a file is a journal, by its first bytes. */
export async function isJournal(blob) {
  return (await blob.slice(0, BEGINNING.length).text()) === BEGINNING;
}

/**
 * Give each line of a journal to `add`. A last line that a crash has torn is left out.
 * `onProgress` is given the part of the file that was read, from 0 to 1.
 * Throws `Unusable` for a file that is no journal, or is damaged.
 */
export async function readJournal(blob, add, name, onProgress) {
  let number = 0;
  let bytes = 0;
  for await (const raw of linesOf(blob)) {
    number += 1;
    bytes += raw.length + 1;
    const line = parseLine(raw);
    if (line === null) {
      throw new Unusable(`${name}, line ${number}: not written by memagent, or damaged`);
    } else if ((number === 1) !== (line.type === "header")) {
      throw new Unusable(`${name} is not a journal of memagent`);
    } else if (number === 1 && line.format !== FORMAT) {
      throw new Unusable(`${name} has format ${line.format}, this page reads ${FORMAT}`);
    }
    add(line);
    onProgress(bytes / blob.size);
  }
  if (number === 0) throw new Unusable(`${name} has no whole line: its read has not begun`);
}
