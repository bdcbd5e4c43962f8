// What the page knows of one read: its steps, and what they came to.

import { changeSize } from "./diff.js";

/** The record of a read; lines of a journal are added as they come. */
export class Trace {
  constructor() {
    this.header = null;
    this.steps = [];
    this.answer = null;
    /** Whether anything was noted that the answer could come from. */
    this.found = true;
    /** The answer's statements with their sources; null where nobody looked for them. */
    this.statements = null;
    /** The last memory's statements with their sources; empty where nobody looked for them. */
    this.remembered = [];
    /** The rows that the answer was counted from, and how; null where it was not counted. */
    this.table = null;
    this.splits = 0;
    this.totals = { prompt: 0, cached: 0, completion: 0, seconds: 0, cut: 0, changes: 0, chunks: 0 };
    this.longest = 0;
    this.inNotes = false;
    this.chunksRead = new Set();
    this.pendingSplit = false;
  }

  add(line) {
    if (line.type === "header") this.header = line;
    else if (line.type === "overflow") {
      this.splits += 1;
      this.countTokens(line);
      this.pendingSplit = true;
    } else if (line.type === "conversation" && line.unused) this.countTokens(line);
    else if (line.type === "conversation") this.addStep(line);
    else if (line.type === "answer") {
      this.answer = line.answer;
      this.found = line.found;
      this.statements = line.statements?.length ? line.statements : null;
    }
  }

  addStep(line) {
    const previous = this.steps.at(-1);
    const current = previous ? previous.memory : this.header.memory;
    const memory = line.memory === current ? current : line.memory;
    const before = line.kind === "answer" ? memory : this.startsAnew(line) ? "" : current;
    const size = changeSize(before, memory);
    const sameChunk = previous && line.span && previous.chunkIndex === line.chunk_index && previous.span;
    const step = {
      kind: line.kind,
      chunkIndex: line.chunk_index,
      span: line.span,
      source: line.source,
      memory,
      before,
      enough: line.enough,
      ignored: line.ignored ?? "",
      verdict: line.verdict ?? null,
      seconds: line.seconds,
      cut: line.finish_reason === "length",
      usage: line.usage,
      unusable: line.unusable,
      added: size.added,
      removed: size.removed,
      changed: before !== memory,
      repeated: Boolean(sameChunk) && String(previous.span) === String(line.span),
      split: this.pendingSplit || (Boolean(sameChunk) && previous.span[1] === line.span[0]),
      ofDocument: this.isOfDocument(line, previous),
    };
    this.pendingSplit = false;
    this.table = line.table ?? this.table;
    this.steps.push(step);
    this.count(step);
  }

  /** Whether a conversation starts with nothing in memory. */
  startsAnew(line) {
    const previous = this.steps.at(-1);
    const again = previous && String(previous.span) === String(line.span);
    return this.header.takes_notes && !again;
  }

  /** Whether the span of a conversation is one of the document: notes may be read like chunks, too. */
  isOfDocument(line, previous) {
    if (this.header.takes_notes && previous && line.chunk_index < previous.chunkIndex) {
      this.inNotes = true;
    }
    return line.span !== null && !this.inNotes;
  }

  /** Count what a line has used; `unusable` are replies that were paid for in vain. */
  countTokens({ usage, unusable = [] }) {
    const { totals } = this;
    for (const counts of usage ? [usage, ...unusable] : unusable) {
      totals.prompt += counts.prompt_tokens;
      totals.cached += counts.cached_tokens ?? 0;
      totals.completion += counts.completion_tokens;
    }
  }

  count(step) {
    const { totals } = this;
    this.countTokens(step);
    totals.seconds += step.seconds;
    totals.cut += step.cut ? 1 : 0;
    totals.changes += step.changed ? 1 : 0;
    if (step.ofDocument) totals.chunks = this.chunksRead.add(step.chunkIndex).size;
    this.longest = Math.max(this.longest, step.added, step.removed);
  }

  /** The index of the nearest step before (-1) or after (+1) `start` that changed the memory; -1 if there is none. */
  changeFrom(start, direction) {
    for (let index = start + direction; index >= 0 && index < this.steps.length; index += direction) {
      if (this.steps[index].changed) return index;
    }
    return -1;
  }

  /**
   * The index of the step that read the character at `offset` of the document; of several, one that took a note. If
   * none did, the last one of an answer that was counted, as code reads tables; else -1.
   */
  stepAt(offset) {
    if (this.isWhole) return 0;
    const covers = (step) => step.ofDocument && step.span[0] <= offset && offset < step.span[1];
    const note = this.steps.findIndex((step) => step.changed && covers(step));
    const index = note < 0 ? this.steps.findIndex(covers) : note;
    return index < 0 && this.table ? this.steps.length - 1 : index;
  }

  /** Whether the answer was made from the whole document at once, without a memory. */
  get isWhole() {
    return this.steps.length > 0 && this.steps.every((step) => step.kind === "answer" && !step.memory);
  }

  /** Where the document ends, as far as it was read. */
  get end() {
    return this.steps.reduce((end, step) => (step.ofDocument ? Math.max(end, step.span[1]) : end), 0);
  }
}
