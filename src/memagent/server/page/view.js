// Puts a read onto the page. Whatever comes from documents and models goes in as text, never as markup.

import { diff } from "./diff.js";

const numbers = new Intl.NumberFormat("en");
const BLOCK_CHARACTERS = 1000;
const TAGS = { added: "ins", removed: "del" };

export const element = (id) => document.getElementById(id);

/** A number for people. */
export function shown(value, digits = 0) {
  return digits ? value.toLocaleString("en", { maximumFractionDigits: digits }) : numbers.format(value);
}

/** A number with its noun. */
export function counted(count, noun) {
  return `${shown(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Seconds as people say them. */
export function duration(seconds) {
  if (seconds < 60) return `${shown(seconds, 1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A new element with text, elements or both in it. */
export function made(tag, content = [], attributes = {}) {
  const it = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) it.setAttribute(name, value);
  it.append(...[content].flat());
  return it;
}

/** The problem, and what it was asked of. */
export function showHead(trace) {
  const { header } = trace;
  element("problem").textContent = header.problem;
  const names = header.document?.sources ?? [];
  const told = names.slice(0, 4).join(", ") + (names.length > 4 ? ` and ${shown(names.length - 4)} more` : "");
  const parts = [told, header.model, header.workflow && `workflow ${header.workflow}`];
  element("facts").textContent = parts.filter(Boolean).join(" · ");
  document.title = `${header.problem.slice(0, 80)} · memagent`;
}

/** What is said of a step in one line. */
export function stepLine(trace, place) {
  const step = trace.steps[place];
  const parts = [`Step ${shown(place + 1)} of ${shown(trace.steps.length)}`];
  if (step.kind === "answer") parts.push("the answer");
  else if (step.chunkIndex === null) parts.push("no chunk");
  else parts.push(`${step.ofDocument ? "chunk" : "notes"} ${shown(step.chunkIndex + 1)}`);
  parts.push(...notesOf(step));
  const { usage } = step;
  const cached = usage.cached_tokens ? ` (${shown(usage.cached_tokens)} cached)` : "";
  parts.push(`${shown(usage.prompt_tokens)}${cached} + ${shown(usage.completion_tokens)} tokens`);
  parts.push(duration(step.seconds));
  return parts.join(" · ");
}

function notesOf(step) {
  const notes = [];
  if (step.verdict !== null) notes.push(`verdict ${step.verdict > 0 ? "+" : ""}${step.verdict.toFixed(1)}`);
  if (step.kind !== "answer") notes.push(step.changed ? "memory changed" : "memory unchanged");
  if (step.ignored) notes.push(`replied “${step.ignored.slice(0, 80)}”`);
  if (step.split) notes.push("part of a chunk that was split");
  if (step.asked) notes.push("asked once more");
  if (step.cut) notes.push("reply cut at its token budget");
  if (step.enough) notes.push("enough is known");
  return notes;
}

/** A step: its memory, with what changed if `changes`, and the text that it read; `missing` where there is none. */
export function showStep(step, changes, text, found, missing) {
  const change = showMemory(step, changes);
  const mark = showText(step, text, found, missing);
  scrollTo(element("memory"), change); // last: each look at a place has the browser lay out what is new
  scrollTo(element("text"), mark);
}

function scrollTo(box, to) {
  box.scrollTop = to ? Math.max(0, to.offsetTop - box.clientHeight / 3) : 0;
}

/** Puts up the memory; gives the first change in it. */
function showMemory(step, changes) {
  const box = element("memory");
  const pieces = changes ? diff(step.before, step.memory) : [{ kind: "same", text: step.memory }];
  const nodes = pieces.map(({ kind, text }) => (TAGS[kind] ? made(TAGS[kind], text) : text));
  if (!step.memory && !nodes.some((it) => it.nodeName)) nodes.push(quiet("The memory is empty."));
  box.replaceChildren(...nodes);
  const size = `${shown(step.memory.length)} characters`;
  const change = step.changed ? `: ${shown(step.added)} added, ${shown(step.removed)} removed` : "";
  element("memory-facts").textContent = size + change;
  return changes && box.querySelector("ins, del");
}

/** Puts up the text that a step read; gives what is marked in it. `found` is a span of the document. */
function showText(step, text, found, missing) {
  const box = element("text");
  const [start, end] = step.span ?? [];
  element("text-facts").textContent = step.place;
  if (!step.span) {
    box.replaceChildren(quiet("This step read no chunk."));
  } else if (!step.ofDocument) {
    box.replaceChildren(quiet("This step read notes that earlier steps had taken, not the document."));
  } else if (!text) {
    box.replaceChildren(quiet(missing));
  } else if (found && found[0] < end && found[1] > start) {
    const [from, to] = [Math.max(found[0], start), Math.min(found[1], end)];
    const marked = made("mark", text.slice(from, to));
    box.replaceChildren(text.slice(start, from), marked, text.slice(to, end));
    return marked;
  } else {
    box.replaceChildren(...blocksOf(text.slice(start, end)));
  }
  return null;
}

/** A text in blocks of whole lines: the browser lays out those that are in sight. */
function blocksOf(text) {
  const blocks = [];
  for (let start = 0, end; start < text.length; start = end) {
    end = text.indexOf("\n", start + BLOCK_CHARACTERS) + 1 || text.length;
    blocks.push(made("div", text.slice(start, end), { class: "block" }));
  }
  return blocks;
}

function quiet(text) {
  return made("p", text, { class: "quiet" });
}

/** All figures of a read, and its settings. */
export function showTotals(trace) {
  const { totals, header, steps } = trace;
  const rows = [
    ["Steps", `${shown(steps.length)}, of which ${shown(totals.changes)} changed the memory`],
    ["Chunks", `${shown(totals.chunks)}, split: ${shown(trace.splits)}`],
    ["Tokens in", `${shown(totals.prompt)}, cached: ${shown(totals.cached)}`],
    ["Tokens out", shown(totals.completion)],
    ["Replies cut", shown(totals.cut)],
    ["Seconds in calls", shown(totals.seconds, 1)],
    ...Object.entries(header.budgets ?? {}).map(([name, value]) => [name.replaceAll("_", " "), shown(value)]),
    ...["model", "workflow", "tokenizer", "created", "version"].map((name) => [name, header[name]]),
    ["Sampling", Object.entries(header.sampling ?? {}).map(([name, value]) => `${name} ${value}`).join(", ")],
    ["Document", (header.document?.sources ?? []).slice(0, 100).join(", ")],
    ["SHA-256", header.document?.sha256],
  ];
  const told = rows.filter(([, value]) => value !== undefined && value !== "");
  element("totals").replaceChildren(...told.flatMap(([name, value]) => [made("dt", name), made("dd", String(value))]));
}
