// Where sources and chunks stand in the document, in words.

import { shown } from "./view.js";

/** Tells the places of one read. `text` is null while the document is not at hand; `open` goes to a source. */
export class Guide {
  constructor(trace, text, open) {
    Object.assign(this, { trace, text, open });
  }

  get files() {
    return this.trace.header.document?.sources ?? [];
  }

  /** Where a source stands in the whole document: sources count from the beginning of their file. */
  offsetOf(source) {
    if (source.at !== null && source.at !== undefined) return source.at;
    if (this.files.length <= 1) return source.start;
    const read = this.trace.steps.filter((it) => it.ofDocument && it.source === source.file);
    for (const { span } of this.text ? read : []) {
      const within = this.text.slice(...span).indexOf(source.excerpt);
      if (within >= 0) return span[0] + [...this.text.slice(...span).slice(0, within)].length;
    }
    return null;
  }

  /** A source's page or line, and the heading above it; its file where there are several. */
  tell(source) {
    const { text } = this;
    const parts = this.files.length > 1 ? [source.file] : [];
    const offset = text && this.offsetOf(source);
    const from = offset - source.start; // where the file begins
    if (source.page !== null) parts.push(`page ${shown(source.page)}`);
    else if (offset !== null) parts.push(`line ${shown(text.lineAt(offset, from))}`);
    const heading = offset === null ? "" : text.headingAt(offset, from);
    if (heading) parts.push(`under “${heading}”`);
    return parts.join(", ") || source.file;
  }

  /** The file of a chunk, and its lines if there is only one file to count them in. */
  linesOf(chunk) {
    if (!chunk.ofDocument) return "";
    if (!this.text || this.files.length > 1) return chunk.source;
    const [start, end] = chunk.span;
    const lines = new Set([start, Math.max(start, end - 1)].map((it) => shown(this.text.lineAt(it))));
    return `${chunk.source}, ${lines.size > 1 ? "lines" : "line"} ${[...lines].join(" to ")}`;
  }
}
