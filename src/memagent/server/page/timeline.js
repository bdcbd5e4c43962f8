// The strip of all steps: what each added to the memory, and removed from it.

const MARK_HEIGHT = 4;
const MIN_BAR = 3;
const COLORS = { added: "--added-bar", removed: "--removed-bar", cut: "--cut", split: "--split", same: "--same-bar" };

/** Draws a trace onto a canvas, and seeks the step that is pointed at. */
export class Timeline {
  constructor(frame, canvas, cursor, seek) {
    Object.assign(this, { frame, canvas, cursor, trace: null, index: 0, drawPending: false });
    new ResizeObserver(() => this.redraw()).observe(frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    const point = (event) => this.trace && seek(this.indexAt(event));
    frame.addEventListener("pointerdown", (event) => {
      frame.setPointerCapture(event.pointerId);
      point(event);
    });
    frame.addEventListener("pointermove", (event) => event.buttons && point(event));
  }

  show(trace) {
    this.trace = trace;
    this.redraw();
  }

  /** Draw before the next frame, once. */
  redraw() {
    if (this.drawPending || !this.trace) return;
    this.drawPending = true;
    requestAnimationFrame(() => {
      this.drawPending = false;
      this.width = this.frame.clientWidth; // measured here, so that moving the cursor measures nothing
      this.draw();
      this.move(this.index);
    });
  }

  indexAt(event) {
    const { left, width } = this.frame.getBoundingClientRect();
    const index = Math.floor(((event.clientX - left) / width) * this.trace.steps.length);
    return Math.max(0, Math.min(this.trace.steps.length - 1, index));
  }

  move(index) {
    this.index = index;
    const center = ((index + 0.5) / Math.max(1, this.trace.steps.length)) * (this.width ?? 0);
    this.cursor.style.transform = `translateX(${Math.round(center) - 1}px)`;
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const height = this.frame.clientHeight;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(this.frame);
    const color = Object.fromEntries(
      Object.entries(COLORS).map(([name, variable]) => [name, style.getPropertyValue(variable)]),
    );
    const middle = height / 2;
    pen.fillStyle = color.same;
    pen.fillRect(0, middle - 0.5, this.width, 1);
    const room = middle - MARK_HEIGHT - 3;
    const heightOf = (size) => (size ? MIN_BAR + (room - MIN_BAR) * Math.sqrt(size / this.trace.longest) : 0);
    for (const [left, width, column] of this.columns()) {
      const drawBar = (name, top, barHeight) => {
        pen.fillStyle = color[name];
        pen.fillRect(left, top, width, barHeight);
      };
      drawBar("added", middle - heightOf(column.added), heightOf(column.added));
      drawBar("removed", middle, heightOf(column.removed));
      if (column.cut) drawBar("cut", 0, MARK_HEIGHT);
      if (column.split) drawBar("split", height - MARK_HEIGHT, MARK_HEIGHT);
    }
  }

  /** Left edges, widths and contents of columns: one for each step, or one for all steps of a pixel. */
  *columns() {
    const { steps } = this.trace;
    const count = Math.min(steps.length, Math.floor(this.width));
    const width = this.width / Math.max(1, count);
    const gap = width > 4 ? 1 : 0;
    for (let index = 0; index < count; index += 1) {
      const column = { added: 0, removed: 0, cut: false, split: false };
      const end = Math.floor(((index + 1) * steps.length) / count);
      for (let step = Math.floor((index * steps.length) / count); step < end; step += 1) {
        column.added = Math.max(column.added, steps[step].added);
        column.removed = Math.max(column.removed, steps[step].removed);
        column.cut ||= steps[step].cut;
        column.split ||= steps[step].split;
      }
      yield [index * width, width - gap, column];
    }
  }
}
