// Where something stands in a text, as people say it: its line, and the heading above it.

const HEADING_LINE = /^#{1,6}[ \t]+(\S.{0,200})/;
const CODE_FENCE = /^(```|~~~)/;
const MAX_TITLE = 80; // characters

/** The lines of a text, and its Markdown headings. Offsets are units of the string. */
export class Places {
  constructor(text) {
    this.starts = [];
    this.headings = [];
    let [inCode, wasBlank] = [false, true];
    for (let start = 0, end; start < text.length; start = end) {
      end = text.indexOf("\n", start) + 1 || text.length;
      this.starts.push(start);
      const first = text[start];
      if (first === "#" || first === "`" || first === "~") {
        const line = text.slice(start, Math.min(end, start + 300));
        if (CODE_FENCE.test(line)) inCode = !inCode;
        const title = !inCode && wasBlank && HEADING_LINE.exec(line);
        if (title) this.headings.push({ start, title: titleOf(title[1]) });
      }
      wasBlank = end - start < 3 && !text.slice(start, end).trim();
    }
  }

  /** The number of the line at `offset`, counted from 1 at `from`, where a file begins. */
  lineAt(offset, from = 0) {
    const linesUpTo = (unit) => countFirst(this.starts, (start) => start <= unit);
    return linesUpTo(offset) - linesUpTo(from) + 1;
  }

  /** The nearest heading between `from` and `offset`; "" without any. */
  headingAt(offset, from = 0) {
    const heading = this.headings[countFirst(this.headings, ({ start }) => start <= offset) - 1];
    return heading && heading.start >= from ? heading.title : "";
  }
}

function titleOf(line) {
  const title = line.replace(/ #+\s*$/, "").replace(/[*`]/g, "").trim();
  return title.length > MAX_TITLE ? `${title.slice(0, MAX_TITLE).trimEnd()}…` : title;
}

/** How many items satisfy `test`: the first ones do, and none after them. */
function countFirst(items, test) {
  let [first, last] = [0, items.length];
  while (first < last) {
    const middle = (first + last) >> 1;
    if (test(items[middle])) first = middle + 1;
    else last = middle;
  }
  return first;
}
