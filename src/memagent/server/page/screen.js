// The read on the screen: which step is shown, and how one gets to another.

import { showAnswer, showRemembered } from "./answer.js";
import { Guide } from "./guide.js";
import { RowTable } from "./table.js";
import { Timeline } from "./timeline.js";
import { element, showHead, showStep, showTotals, stepLine } from "./view.js";

const PAGE_STEPS = 10;
const AROUND = 2000; // characters: what is shown of the text on either side of a row that no step read
const MISSING = {
  true: "The journal does not hold the text. Drop the file that was read to see it here.",
  false: "The text is on its way from the server.",
};

/** Shows one trace, and moves through its steps. */
export class Screen {
  constructor() {
    this.trace = null;
    this.text = null;
    this.index = 0; // of the step that is shown
    this.highlight = null; // what is marked: where it begins and ends in the document, and its file
    this.rows = new RowTable();
    this.waiting = { text: "", failed: false };
    this.drawPending = false;
    this.changed = false; // more than which step is shown
    this.live = false;
    this.missing = ""; // what stands in the place of a text
    this.timeline = new Timeline(element("timeline"), element("strip"), element("cursor"), (index) => this.go(index));
    element("slider").addEventListener("input", (event) => this.go(event.target.valueAsNumber - 1));
    element("follow").addEventListener("change", (event) => event.target.checked && this.go(Infinity));
    element("changes").addEventListener("change", () => this.requestDraw());
    for (const [id, move] of Object.entries(MOVES)) element(id).addEventListener("click", () => move(this));
    document.addEventListener("keydown", (event) => this.onKeyDown(event));
  }

  /**
   * Show a trace where its answer comes from, one that is `live` at its last step. `waiting` stands where there is no
   * answer.
   */
  open(trace, waiting, live = false) {
    Object.assign(this, { trace, text: null, live });
    this.guide = new Guide(trace, (source) => this.openSource(source));
    this.waiting = { text: waiting, failed: false };
    element("follow-label").hidden = !live;
    element("follow").checked = true; // until somebody moves
    element("start").hidden = true;
    element("read").hidden = false;
    this.goToAnswer();
    this.missing = MISSING[Boolean(trace.header.document?.sha256)];
    showHead(trace);
    this.update();
  }

  /** Back to the start page. */
  close() {
    this.trace = null;
    element("read").hidden = true;
    element("start").hidden = false;
    document.title = "memagent";
  }

  /** The trace has new steps. */
  update() {
    if (this.live && element("follow").checked) {
      this.index = Math.max(0, this.trace.steps.length - 1);
      this.highlight = null;
    }
    this.changed = true;
    this.requestDraw();
  }

  /** The trace will not grow any more; `text` says why if it has no answer. */
  end(text, failed) {
    if (element("follow").checked) this.goToAnswer();
    this.live = false;
    this.waiting = { text, failed };
    element("follow-label").hidden = true;
    showHead(this.trace);
    this.update();
  }

  drawWhole() {
    const { trace } = this;
    showAnswer(trace, this.waiting, this.guide);
    this.rows.show(trace.table, this.guide);
    showRemembered(trace, this.guide);
    showTotals(trace);
    const isEmpty = !trace.steps.length;
    for (const id of ["steps", "memory-pane"]) element(id).hidden = isEmpty || trace.isWhole;
    for (const id of ["panes", "totals-section"]) element(id).hidden = isEmpty;
    element("key-cut").hidden = !trace.totals.cut;
    element("key-split").hidden = !trace.splits;
    element("slider").max = Math.max(1, trace.steps.length);
    this.timeline.show(trace);
  }

  /** The text of the document is known now. */
  setText(text) {
    this.text = text;
    this.guide.text = text;
    this.changed = true; // sources have lines now
    this.requestDraw();
  }

  /** Go to a step, or to the first or the last one instead of what lies beyond. */
  go(index) {
    if (!this.trace?.steps.length) return;
    const last = this.trace.steps.length - 1;
    const target = Math.max(0, Math.min(last, index));
    element("follow").checked = target === last;
    if (target === this.index) return;
    this.index = target;
    this.highlight = null;
    this.requestDraw();
  }

  goToChange(direction) {
    const index = this.trace.changeFrom(this.index, direction);
    if (index >= 0) this.go(index);
  }

  /** Go to the step that read the first source of the answer, or else to the last that changed the memory. */
  goToAnswer() {
    const { statements, table } = this.trace;
    const source = table ? table.rows[0]?.source : statements?.find((statement) => statement.source)?.source;
    if (source && this.goToSource(source)) return;
    this.index = Math.max(0, this.trace.changeFrom(this.trace.steps.length, -1));
    this.highlight = null;
  }

  /** Go to the step that read a source's excerpt, and mark it; returns whether there is one. */
  goToSource(source) {
    const offset = source.at; // null if an earlier document says it
    const index = offset === null ? -1 : this.trace.stepAt(offset);
    if (index < 0) return false;
    this.index = index;
    this.highlight = [offset, offset + (source.end - source.start), source.file];
    return true;
  }

  openSource(source) {
    if (!this.goToSource(source)) return;
    element("follow").checked = false;
    this.requestDraw();
    element("text-pane").hidden = false; // what is hidden takes no focus
    element("text").focus();
  }

  /** Draw before the next frame; many requests before it are one. */
  requestDraw() {
    if (this.drawPending) return;
    this.drawPending = true;
    requestAnimationFrame(() => {
      this.drawPending = false;
      if (this.trace && this.changed) this.drawWhole();
      this.changed = false;
      if (this.trace) this.draw();
    });
  }

  draw() {
    const { trace, index } = this;
    const step = trace.steps[index];
    element("previous").disabled = index === 0;
    element("next").disabled = index >= trace.steps.length - 1;
    element("previous-change").disabled = trace.changeFrom(index, -1) < 0;
    element("next-change").disabled = trace.changeFrom(index, 1) < 0;
    if (!step) return;
    const line = stepLine(trace, index);
    element("step").textContent = line;
    element("slider").value = index + 1;
    element("slider").setAttribute("aria-valuetext", line);
    this.timeline.move(index);
    const view = { ...step, ...(step.span || !this.text ? {} : this.textBeside(this.text)) };
    element("text-pane").hidden = view.kind === "answer" && !trace.isWhole && !view.span;
    view.location = this.guide.locationOf(view);
    showStep(view, element("changes").checked, this.text, this.highlight, this.missing);
  }

  /** What is shown of the text at a step that read no chunk of it. */
  textBeside(text) {
    if (this.trace.isWhole) return wholeText(text, this.trace);
    if (!this.highlight) return {};
    const [start, end, source] = this.highlight;
    return { ofDocument: true, span: [Math.max(0, start - AROUND), Math.min(text.length, end + AROUND)], source };
  }

  onKeyDown(event) {
    const field = event.target.closest?.("input, textarea, select, summary, [contenteditable]");
    const free = !field && !event.ctrlKey && !event.metaKey && !event.altKey;
    const scrolls = event.target.classList?.contains("text") && !event.key.startsWith("Arrow");
    const move = KEYS[event.key];
    if (!this.trace || !free || !move || (scrolls && event.key.length > 1)) return;
    event.preventDefault();
    move(this);
  }
}

/** What is shown of the text at a step that read the whole document. */
function wholeText(text, trace) {
  const source = (trace.header.document?.sources ?? []).join(", ");
  return { ofDocument: true, span: [0, text.length], source };
}

const MOVES = {
  previous: (screen) => screen.go(screen.index - 1),
  next: (screen) => screen.go(screen.index + 1),
  "previous-change": (screen) => screen.goToChange(-1),
  "next-change": (screen) => screen.goToChange(1),
};

const KEYS = {
  ArrowLeft: MOVES.previous,
  ArrowRight: MOVES.next,
  p: MOVES["previous-change"],
  n: MOVES["next-change"],
  PageUp: (screen) => screen.go(screen.index - PAGE_STEPS),
  PageDown: (screen) => screen.go(screen.index + PAGE_STEPS),
  Home: (screen) => screen.go(0),
  End: (screen) => screen.go(screen.trace.steps.length - 1),
};
