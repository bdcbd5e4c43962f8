// Reads a journal: JSON lines, each with the CRC-32 of its text. See docs/file-formats.md.

const FORMAT = 2;
const SLICE_BYTES = 1 << 20;
const NEWLINE = 10;
const CHECKSUM = /^, "crc32": "([0-9a-f]{8})"}$/;
const CHECKSUM_BYTES = 22;
const BEGINNING = '{"type": "header"';

/** An error that people are shown: a file or a reply that cannot be used. */
export class Unusable extends Error {}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, number) => {
  let value = number;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

/** The CRC-32 of bytes[0, end), and of a closing brace behind them. */
function checksumOf(bytes, end) {
  let value = 0xffffffff;
  for (let index = 0; index < end; index += 1) {
    value = (value >>> 8) ^ CRC_TABLE[(value ^ bytes[index]) & 0xff];
  }
  value = (value >>> 8) ^ CRC_TABLE[(value ^ 0x7d) & 0xff];
  return (value ^ 0xffffffff) >>> 0;
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The object of a line, or null if the line is not whole. */
function parseLine(bytes, checked) {
  try {
    if (!checked) return JSON.parse(utf8.decode(bytes));
    const end = bytes.length - CHECKSUM_BYTES;
    const match = end > 0 && CHECKSUM.exec(utf8.decode(bytes.subarray(end)));
    if (!match || checksumOf(bytes, end) !== parseInt(match[1], 16)) return null;
    return JSON.parse(`${utf8.decode(bytes.subarray(0, end))}}`);
  } catch {
    return null;
  }
}

/** The lines of a blob as bytes, each with whether a newline ends it. */
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
      yield [bytes.subarray(start, end), true];
      start = end + 1;
    }
    rest = bytes.subarray(start);
  }
  if (rest.length) yield [rest, false];
}

/** Whether a file is a journal, by its first bytes. */
export async function isJournal(blob) {
  return (await blob.slice(0, BEGINNING.length).text()) === BEGINNING;
}

/**
 * Give each line of a journal to `add`. A last line that a crash has torn is left out.
 * Without `checked`, lines have no checksums. `onProgress` is given the part of the file that was read, from 0 to 1.
 * Throws `Unusable` for a file that is no journal, or is damaged.
 */
export async function readJournal(blob, add, { name = "the file", checked = true, onProgress = () => {} } = {}) {
  let number = 0;
  let bytes = 0;
  let damaged = 0;
  for await (const [raw, ended] of linesOf(blob)) {
    if (damaged) throw new Unusable(`${name}, line ${damaged}: not written by memagent, or damaged`);
    number += 1;
    bytes += raw.length + 1;
    const line = ended ? parseLine(raw, checked) : null;
    if (line === null) {
      damaged = number;
    } else if ((number === 1) !== (line.type === "header")) {
      throw new Unusable(`${name} is not a journal of memagent`);
    } else if (number === 1 && line.format !== FORMAT) {
      throw new Unusable(`${name} has format ${line.format}, this page reads ${FORMAT}`);
    } else {
      add(line);
    }
    onProgress(bytes / blob.size);
  }
  if (number === 0) throw new Unusable(`${name} is empty`);
  if (damaged === 1) throw new Unusable(`${name}, line 1: not written by memagent, or damaged`);
}
