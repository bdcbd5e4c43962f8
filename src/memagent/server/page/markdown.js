// The Markdown that models answer in, as elements: paragraphs, headings, lists, code, emphasis. All else, such as
// links, tables and HTML, stays as it was written: a text goes in as text, never as markup.

import { makeElement } from "./view.js";

const FENCE = /^\s*(```|~~~)/;
const HEADING = /^ {0,3}#{1,6}\s+(?=\S)/;
const ITEM = /^(\s*)(?:[-*+•]|(\d{1,3})[.)])\s+(?=\S)/;
const CODE = /`[^`\n]+`/;
const STRONG = /\*\*(?=[^\s*])[^]{0,2000}?(?<=\S)\*\*(?!\*)/;
const EMPHASIS = /(?<![\w*])\*(?=[^\s*])[^*]{0,2000}(?<=\S)\*(?![\w*])|(?<!\w)_(?=[^\s_])[^_]{0,2000}(?<=\S)_(?!\w)/;
const INLINE = new RegExp([CODE, STRONG, EMPHASIS].map((pattern) => pattern.source).join("|"), "g");

/** The elements of a text. `marks` go into it in their order: each has a `node`, and the `offset` where it goes. */
export function markdown(text, marks = []) {
  return new Blocks(text, [...marks]).all();
}

class Blocks {
  constructor(text, marks) {
    Object.assign(this, { text, marks, lines: [], at: 0 });
    let start = 0;
    for (const line of text.split("\n")) {
      this.lines.push({ text: line, start, end: start + line.length });
      start += line.length + 1;
    }
  }

  get line() {
    return this.lines[this.at];
  }

  all() {
    const blocks = [];
    while (this.line) {
      const { text } = this.line;
      if (!text.trim()) this.at += 1;
      else if (FENCE.test(text)) blocks.push(this.code());
      else if (HEADING.test(text)) blocks.push(this.heading());
      else if (ITEM.test(text)) blocks.push(this.list());
      else blocks.push(makeElement("p", this.textFrom(0)));
    }
    return blocks;
  }

  code() {
    const [, fence] = FENCE.exec(this.line.text);
    const first = ++this.at;
    while (this.line && !this.line.text.trimStart().startsWith(fence)) this.at += 1;
    const lines = this.lines.slice(first, this.at++);
    while (this.marks[0]?.offset <= lines.at(-1)?.end) this.marks.shift(); // code stays as it is
    return makeElement("pre", makeElement("code", lines.map((line) => line.text).join("\n")));
  }

  heading() {
    const { text, start } = this.line;
    this.at += 1;
    const end = text.trimEnd().replace(/ #+$/, "").length;
    return makeElement("h3", this.inline(start + HEADING.exec(text)[0].length, start + end));
  }

  /** A list, with those of a deeper indent in its items. */
  list() {
    const [, indent, number] = ITEM.exec(this.line.text);
    const items = [];
    for (let item = this.item(); item; item = this.item()) {
      const deeper = item[1].length - indent.length;
      if (deeper > 1) items.at(-1).append(this.list());
      else if (deeper < 0 || !item[2] !== !number) break;
      else items.push(makeElement("li", this.textFrom(item[0].length)));
    }
    return number ? makeElement("ol", items, { start: number }) : makeElement("ul", items);
  }

  /** The item that begins at the next line that is not blank, if one does: goes there. */
  item() {
    let at = this.at;
    while (this.lines[at]?.text.trim() === "") at += 1;
    const match = ITEM.exec(this.lines[at]?.text ?? "");
    if (match) this.at = at;
    return match;
  }

  /** From a column of this line on, until a blank line or another block. */
  textFrom(column) {
    const from = this.line.start + column;
    let end;
    do {
      end = this.line.end;
      this.at += 1;
    } while (this.line?.text.trim() && ![FENCE, HEADING, ITEM].some((pattern) => pattern.test(this.line.text)));
    return this.inline(from, end);
  }

  inline(from, to) {
    const nodes = [];
    let done = from;
    for (const match of this.text.slice(from, to).matchAll(INLINE)) {
      const [whole] = match;
      const [start, end] = [from + match.index, from + match.index + whole.length];
      nodes.push(...this.plain(done, start));
      const width = whole.startsWith("**") ? 2 : 1;
      const inner = whole[0] === "`" ? whole.slice(1, -1) : this.inline(start + width, end - width);
      nodes.push(makeElement(whole[0] === "`" ? "code" : width === 2 ? "strong" : "em", inner));
      done = end;
    }
    return [...nodes, ...this.plain(done, to)];
  }

  /** A text as it stands, with the marks that go into it. */
  plain(from, to) {
    const nodes = [];
    while (this.marks[0]?.offset <= to) {
      const { offset, node } = this.marks.shift();
      nodes.push(this.text.slice(from, Math.max(from, offset)), node);
      from = Math.max(from, offset);
    }
    return [...nodes, this.text.slice(from, to)];
  }
}
