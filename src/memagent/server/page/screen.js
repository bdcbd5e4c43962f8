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
    this.place = 0;
    this.found = null; // what is marked: where it begins and ends in the document, and its file
    this.rows = new RowTable();
    this.waiting = { text: "", failed: false };
    this.asked = false;
    this.changed = false; // more than the place that is shown
    this.live = false;
    this.missing = ""; // what stands in the place of a text
    this.timeline = new Timeline(element("timeline"), element("strip"), element("cursor"), (place) => this.go(place));
    element("slider").addEventListener("input", (event) => this.go(event.target.valueAsNumber - 1));
    element("follow").addEventListener("change", (event) => event.target.checked && this.go(Infinity));
    element("changes").addEventListener("change", () => this.ask());
    for (const [id, move] of Object.entries(MOVES)) element(id).addEventListener("click", () => move(this));
    document.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** Show a trace where its answer comes from, one that is `live` at its last step. `waiting` takes the answer's place. */
  open(trace, text, waiting, live = false) {
    Object.assign(this, { trace, text, live });
    this.guide = new Guide(trace, text, (source) => this.openSource(source));
    this.waiting = { text: waiting, failed: false };
    element("follow-label").hidden = !live;
    element("follow").checked = true; // until somebody moves
    element("start").hidden = true;
    element("read").hidden = false;
    this.goToAnswer();
    this.missing = MISSING[Boolean(trace.header.document?.sha256)];
    showHead(trace);
    this.grown();
  }

  /** Back to the start page. */
  close() {
    this.trace = null;
    element("read").hidden = true;
    element("start").hidden = false;
    document.title = "memagent";
  }

  /** The trace has new steps. */
  grown() {
    if (this.live && element("follow").checked) {
      this.place = Math.max(0, this.trace.steps.length - 1);
      this.found = null;
    }
    this.changed = true;
    this.ask();
  }

  /** The trace will not grow any more; `text` says why if it has no answer. */
  end(text, failed) {
    if (element("follow").checked) this.goToAnswer();
    this.live = false;
    this.waiting = { text, failed };
    element("follow-label").hidden = true;
    showHead(this.trace);
    this.grown();
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
    this.ask();
  }

  go(place) {
    if (!this.trace?.steps.length) return;
    const to = Math.max(0, Math.min(this.trace.steps.length - 1, place));
    element("follow").checked = to === this.trace.steps.length - 1;
    if (to === this.place) return;
    this.place = to;
    this.found = null;
    this.ask();
  }

  goToChange(direction) {
    const to = this.trace.changeFrom(this.place, direction);
    if (to >= 0) this.go(to);
  }

  /** Go to the step that read the first source of the answer, or else to the last that changed the memory. */
  goToAnswer() {
    const { statements, table } = this.trace;
    const source = table ? table.rows[0]?.source : statements?.find((it) => it.source)?.source;
    if (source && this.goToSource(source)) return;
    this.place = Math.max(0, this.trace.changeFrom(this.trace.steps.length, -1));
    this.found = null;
  }

  /** Go to the step that read a source's excerpt, and mark it; whether there is one. */
  goToSource(source) {
    const offset = this.guide.offsetOf(source);
    const place = offset === null ? -1 : this.trace.stepAt(offset);
    if (place < 0) return false;
    this.place = place;
    this.found = [offset, offset + (source.end - source.start), source.file];
    return true;
  }

  openSource(source) {
    if (!this.goToSource(source)) return;
    element("follow").checked = false;
    this.ask();
    element("text-pane").hidden = false; // what is hidden takes no focus
    element("text").focus();
  }

  /** Draw before the next frame; whatever was asked for meanwhile is drawn once. */
  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      if (this.trace && this.changed) this.drawWhole();
      this.changed = false;
      if (this.trace) this.draw();
    });
  }

  draw() {
    const { trace, place } = this;
    const step = trace.steps[place];
    element("previous").disabled = place === 0;
    element("next").disabled = place >= trace.steps.length - 1;
    element("previous-change").disabled = trace.changeFrom(place, -1) < 0;
    element("next-change").disabled = trace.changeFrom(place, 1) < 0;
    if (!step) return;
    const line = stepLine(trace, place);
    element("step").textContent = line;
    element("slider").value = place + 1;
    element("slider").setAttribute("aria-valuetext", line);
    this.timeline.move(place);
    const it = { ...step, ...(step.span || !this.text ? {} : this.shownOf(this.text)) };
    element("text-pane").hidden = it.kind === "answer" && !trace.isWhole && !it.span;
    it.place = this.guide.linesOf(it);
    showStep(it, element("changes").checked, this.text, this.found, this.missing);
  }

  /** What is shown of the text at a step that read no chunk of it. */
  shownOf(text) {
    if (this.trace.isWhole) return allOf(text, this.trace);
    if (!this.found) return {};
    const [start, end, source] = this.found;
    return { ofDocument: true, span: [Math.max(0, start - AROUND), Math.min(text.length, end + AROUND)], source };
  }

  pressed(event) {
    const own = event.target.closest?.("input, textarea, select, summary, [contenteditable]");
    const free = !own && !event.ctrlKey && !event.metaKey && !event.altKey;
    const scrolls = event.target.classList?.contains("text") && !event.key.startsWith("Arrow");
    const move = KEYS[event.key];
    if (!this.trace || !free || !move || (scrolls && event.key.length > 1)) return;
    event.preventDefault();
    move(this);
  }
}

/** What a step that read the whole document has beside others. */
function allOf(text, trace) {
  const source = (trace.header.document?.sources ?? []).join(", ");
  return { ofDocument: true, span: [0, text.length], source };
}

const MOVES = {
  previous: (screen) => screen.go(screen.place - 1),
  next: (screen) => screen.go(screen.place + 1),
  "previous-change": (screen) => screen.goToChange(-1),
  "next-change": (screen) => screen.goToChange(1),
};

const KEYS = {
  ArrowLeft: MOVES.previous,
  ArrowRight: MOVES.next,
  p: MOVES["previous-change"],
  n: MOVES["next-change"],
  PageUp: (screen) => screen.go(screen.place - PAGE_STEPS),
  PageDown: (screen) => screen.go(screen.place + PAGE_STEPS),
  Home: (screen) => screen.go(0),
  End: (screen) => screen.go(screen.trace.steps.length - 1),
};
