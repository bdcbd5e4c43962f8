// Where sources and chunks stand in the document, in words.

import { formatNumber } from "./view.js";

/** Describes the places of one read. `text` is null while the document is not at hand; `open` goes to a source. */
export class Guide {
  constructor(trace, open) {
    Object.assign(this, { trace, open, text: null });
  }

  get files() {
    return this.trace.header.document?.sources ?? [];
  }

  /** A source's page or line, and the heading above it; its file where there are several. */
  describe(source) {
    const { text } = this;
    const parts = this.files.length > 1 ? [source.file] : [];
    const offset = text && source.at;
    const from = offset - source.start; // where the file begins
    if (source.page !== null) parts.push(`page ${formatNumber(source.page)}`);
    else if (offset !== null) parts.push(`line ${formatNumber(text.lineAt(offset, from))}`);
    const heading = offset === null ? "" : text.headingAt(offset, from);
    if (heading) parts.push(`under “${heading}”`);
    return parts.join(", ") || source.file;
  }

  /** The file of what a step read, and its lines if there is only one file to count them in. */
  locationOf(step) {
    if (!step.ofDocument) return "";
    if (!this.text || this.files.length > 1) return step.source;
    const [start, end] = step.span;
    const lines = new Set([start, Math.max(start, end - 1)].map((offset) => formatNumber(this.text.lineAt(offset))));
    return `${step.source}, ${lines.size > 1 ? "lines" : "line"} ${[...lines].join(" to ")}`;
  }
}
