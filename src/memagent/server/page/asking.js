// Asking a server: the form, the reads that there are, and a read that is watched while it goes on.

import { KeyNeeded, Server } from "./server.js";
import { Characters } from "./text.js";
import { Trace } from "./trace.js";
import { element, formatCount, formatDuration, formatNumber, makeElement } from "./view.js";

const STATES = {
  done: "",
  queued: "The read waits for its turn.",
  running: "There is no answer yet: the read goes on.",
  failed: "There is no answer: the read failed.",
  cancelled: "There is no answer: the read was stopped.",
};

/** Asks by the forms on the page, and shows the reads of a server on a screen. */
export class Asking {
  /** `attempt` does something that may fail; `say` reports what goes on. */
  constructor(screen, attempt, say) {
    Object.assign(this, { screen, attempt, say, server: new Server(), controller: null, id: null, read: null });
    element("start-title").textContent = "Ask a long document";
    element("start-text").textContent =
      "The model reads it from beginning to end, however long it is, and shows where the answer comes from.";
    element("drop-text").textContent = "Drop files to ask about, or a journal to see";
    element("ask").hidden = false;
    element("ask-key").value = this.server.key;
    element("ask-key").addEventListener("change", (event) => {
      this.server.key = event.target.value;
      this.attempt(() => this.follow());
    });
    this.button("again", () => this.leave());
    this.button("stop", () => this.server.change(this.id, "cancel"));
    this.button("resume", async () => {
      await this.server.change(this.id, "resume");
      await this.watch(this.id);
    });
    this.form("ask", () => this.start());
    this.form("more", () => this.askAgain());
    addEventListener("hashchange", () => this.attempt(() => this.follow()));
  }

  button(id, work) {
    element(id).addEventListener("click", () => this.attempt(work));
  }

  /** Have a form do its work, and nothing twice. */
  form(id, work) {
    const submit = element(id).querySelector("button");
    element(id).addEventListener("submit", async (event) => {
      event.preventDefault();
      submit.disabled = true;
      await this.attempt(work);
      submit.disabled = false;
    });
  }

  /** Show the read that the address names; without one, or if it cannot be shown, the form. */
  async follow() {
    const id = location.hash.slice(1);
    if (!id) return this.leave();
    try {
      await this.watch(id);
    } catch (error) {
      if (error.name !== "AbortError") {
        this.screen.close();
        await this.list().catch(() => {}); // the first error says more
      }
      throw error;
    }
  }

  /** Read what the form has. */
  async start() {
    this.say("Sending what is to be read");
    const files = [...element("ask-files").files];
    const problem = element("ask-problem").value;
    const send = () => this.server.start(problem, element("ask-text").value, files, options());
    await this.show(await this.withKey(send));
  }

  /** Read the document of the read that is shown once more, in the same way. */
  async askAgain() {
    const read = await this.server.startAgain(this.read, element("more-problem").value);
    element("more-problem").value = "";
    await this.show(read);
  }

  /** Show a read that has begun: the browser's way back leads to what was shown before. */
  async show(read) {
    history.pushState(null, "", `#${read.id}`);
    window.scrollTo(0, 0);
    await this.watch(read.id);
  }

  /** Files that were dropped: to be asked about. */
  async choose(files) {
    await this.leave();
    const data = new DataTransfer();
    for (const file of files) data.items.add(file);
    element("ask-files").files = data.files;
    element("ask-problem").focus();
  }

  /** Do something that needs an API key, and ask for one that is missing. */
  async withKey(work) {
    try {
      return await work();
    } catch (error) {
      if (error instanceof KeyNeeded) element("key-field").hidden = false;
      throw error;
    }
  }

  /** The reads that there are, and the model. */
  async list() {
    const { data } = await this.withKey(() => this.server.ask("reads?limit=20"));
    const rows = data.map((read) => {
      const link = makeElement("a", read.problem.slice(0, 200), { href: `#${read.id}` });
      const state = makeElement("span", `${read.state}, ${read.documents.join(", ")}`, { class: "quiet" });
      return makeElement("li", [link, state]);
    });
    element("reads").hidden = !rows.length;
    element("reads-list").replaceChildren(...rows);
    const models = await this.server.ask("models");
    element("model").textContent = models.data[0].id;
  }

  /** Back to the form. */
  async leave() {
    this.forget();
    history.replaceState(null, "", location.pathname);
    this.screen.close();
    this.say("");
    await this.list();
  }

  /** The page shows something else now; the read goes on. */
  forget() {
    this.controller?.abort();
    this.id = null;
    for (const id of ["stop", "resume", "again", "more"]) element(id).hidden = true;
  }

  /** Show a read from its beginning, and what comes as it goes on. */
  async watch(id) {
    this.forget();
    const controller = new AbortController();
    Object.assign(this, { id, controller });
    history.replaceState(null, "", `#${id}`);
    const { signal } = controller;
    const read = await this.withKey(() => this.server.ask(`reads/${id}`, { signal }));
    const trace = traceOf(read);
    this.screen.open(trace, STATES[read.state], ["queued", "running"].includes(read.state));
    this.fetchText(id, signal);
    element("again").hidden = false;
    element("stop").hidden = false;
    for await (const [name, data] of this.server.events(id, signal)) {
      if (name === "conversation") {
        trace.add({ type: "conversation", ...data });
        this.screen.update();
      } else if (name === "progress") {
        trace.remembered = data.statements ?? [];
        this.screen.update();
        this.say(progressLine(data));
      } else if (name === "lost") {
        this.say(data);
      }
    }
    if (!signal.aborted) await this.finish(id, trace);
  }

  /** Fetch the text that is read, to show each chunk beside its memory. */
  async fetchText(id, signal) {
    try {
      const reply = await this.server.request(`reads/${id}/text`, { signal });
      const text = new Characters(await reply.text());
      if (this.id === id) this.screen.setText(text);
    } catch (error) {
      if (this.id === id && !signal.aborted) this.screen.missing = `The text cannot be shown: ${error.message}`;
    }
  }

  async finish(id, trace) {
    const read = await this.server.ask(`reads/${id}`).catch((error) => ({ error }));
    if (this.id !== id) return;
    const { result, error, state } = read;
    trace.remembered = read.progress?.statements ?? [];
    if (result) {
      trace.answer = result.answer;
      trace.found = result.found;
      trace.statements = result.statements?.length ? result.statements : null;
      trace.table ??= result.table ?? null;
      trace.header = { ...trace.header, model: result.model, workflow: result.workflow };
    }
    this.read = read;
    element("stop").hidden = true;
    element("resume").hidden = state !== "failed" && state !== "cancelled";
    element("resume").textContent = trace.steps.length ? "Continue" : "Try again";
    element("more").hidden = !result;
    this.say(read.progress ? progressLine(read.progress) : "");
    this.screen.end(error?.message ?? STATES[state], state === "failed");
  }
}

/** The options that were set, under the names that the server knows. */
function options() {
  const fields = element("options").querySelectorAll("select, input");
  const entries = [...fields]
    .filter((field) => field.value)
    .map((field) => [field.name, field.type === "number" ? field.valueAsNumber : field.value]);
  return Object.fromEntries(entries);
}

function traceOf(read) {
  const trace = new Trace();
  const document = { sources: read.documents };
  const { problem, workflow, takes_notes } = read;
  trace.add({ type: "header", problem, memory: "", document, workflow, takes_notes });
  return trace;
}

function progressLine(progress) {
  if (progress.state) return STATES[progress.state] ?? progress.state;
  const all = progress.chunks_in_all && !progress.done ? ` of about ${formatNumber(progress.chunks_in_all)}` : "";
  const parts = [`${formatCount(progress.chunks, "chunk")}${all}`];
  if (progress.passed_over) parts.push(`${formatNumber(progress.passed_over)} passed over`);
  if (progress.passes > 1) parts.push(`again ${formatNumber(progress.reread)} of ${formatNumber(progress.to_reread)}`);
  parts.push(`${formatNumber(progress.prompt_tokens)} + ${formatNumber(progress.completion_tokens)} tokens`);
  if (progress.cost !== null) parts.push(`cost ${formatNumber(progress.cost, 4)}`);
  if (progress.seconds_left) parts.push(`${formatDuration(progress.seconds_left)} left`);
  return parts.join(" · ");
}
