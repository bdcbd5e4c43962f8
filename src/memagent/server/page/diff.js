// What changed between two texts: sentences first, then the words of those that were rewritten.

const SENTENCE_BORDER = /(?=\S)(?<=[.!?…]["'”’»)\]]*\s+|\n\s*|[。！？])/;
const WORDS = /[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[\p{L}\p{M}\p{N}_]+|\s+|[^]/gu;
const MAX_CELLS = 1_500_000; // of the table: what exceeds it counts as rewritten
const MIN_COMMON = 0.4; // of two texts, so that words are worth comparing

/** The sentences of a text; joined, they are the text. */
export function sentencesOf(text) {
  return text ? text.split(SENTENCE_BORDER) : [];
}

/** How many characters of sentences were added and removed. */
export function changeSize(before, after) {
  if (before === after) return { added: 0, removed: 0 };
  const old = new Set(sentencesOf(before).map((sentence) => sentence.trim()));
  const fresh = new Set(sentencesOf(after).map((sentence) => sentence.trim()));
  let added = 0;
  let removed = 0;
  for (const sentence of fresh) if (!old.has(sentence)) added += sentence.length;
  for (const sentence of old) if (!fresh.has(sentence)) removed += sentence.length;
  return { added, removed };
}

/**
 * The pieces `{ kind, text }` of both texts in order; `kind` is "same", "added" or "removed".
 * What is the same has the white space of the second text.
 */
export function diff(before, after) {
  const pieces = [];
  for (const [same, removed, added] of runs(sentencesOf(before), sentencesOf(after))) {
    push(pieces, "same", same);
    for (const piece of compareWords(removed, added)) push(pieces, piece.kind, piece.text);
  }
  return pieces;
}

function push(pieces, kind, text) {
  if (!text) return;
  const last = pieces.at(-1);
  if (last && last.kind === kind) last.text += text;
  else pieces.push({ kind, text });
}

/** The pieces of a stretch that was replaced: word by word if much of it stayed, else as a whole. */
function compareWords(removed, added) {
  const whole = [{ kind: "removed", text: removed }, { kind: "added", text: added }];
  if (!removed || !added) return whole;
  const pieces = [];
  let common = 0;
  for (const [same, out, into] of runs(removed.match(WORDS), added.match(WORDS))) {
    common += same.replace(/\s+/g, "").length;
    push(pieces, "same", same);
    push(pieces, "removed", out);
    push(pieces, "added", into);
  }
  return common >= MIN_COMMON * Math.min(removed.length, added.length) ? pieces : whole;
}

/** Triples of text: what is the same, then what was removed and added behind it. */
function runs(old, fresh) {
  const ids = new Map();
  const idOf = (text) => {
    const key = text.trim();
    if (!ids.has(key)) ids.set(key, ids.size);
    return ids.get(key);
  };
  const left = Int32Array.from(old, idOf);
  const right = Int32Array.from(fresh, idOf);
  let first = 0;
  while (first < left.length && first < right.length && left[first] === right[first]) first += 1;
  let last = 0;
  const most = Math.min(left.length, right.length) - first;
  while (last < most && left[left.length - 1 - last] === right[right.length - 1 - last]) last += 1;
  const triples = [[fresh.slice(0, first).join(""), "", ""]];
  const middle = [left.subarray(first, left.length - last), right.subarray(first, right.length - last)];
  for (const [same, i, j] of matches(...middle)) {
    if (same) triples.push([fresh[first + j], "", ""]);
    else if (j < 0) triples.at(-1)[1] += old[first + i];
    else triples.at(-1)[2] += fresh[first + j];
  }
  triples.push([fresh.slice(fresh.length - last).join(""), "", ""]);
  return triples;
}

/** The steps of a longest common subsequence: `[same, i, j]`, with -1 where one side has nothing. */
function* matches(a, b) {
  const width = b.length + 1;
  const fits = (a.length + 1) * width <= MAX_CELLS;
  const table = fits ? tableOf(a, b, width) : null;
  let i = 0;
  let j = 0;
  while (fits && i < a.length && j < b.length) {
    if (a[i] === b[j]) yield [true, i++, j++];
    else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) yield [false, i++, -1];
    else yield [false, -1, j++];
  }
  for (; i < a.length; i += 1) yield [false, i, -1];
  for (; j < b.length; j += 1) yield [false, -1, j];
}

/** The lengths of the longest common subsequences of all pairs of ends. */
function tableOf(a, b, width) {
  const table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    const row = i * width;
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const skip = Math.max(table[row + width + j], table[row + j + 1]);
      table[row + j] = a[i] === b[j] ? table[row + width + j + 1] + 1 : skip;
    }
  }
  return table;
}
