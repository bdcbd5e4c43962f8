// Puts a read onto the page. Whatever comes from documents and models goes in as text, never as markup.

import { diff } from "./diff.js";

const numberFormat = new Intl.NumberFormat("en");
const BLOCK_CHARACTERS = 1000;
const TAGS = { added: "ins", removed: "del" };

export const element = (id) => document.getElementById(id);

/** A number for people. */
export function formatNumber(value, digits = 0) {
  return digits ? value.toLocaleString("en", { maximumFractionDigits: digits }) : numberFormat.format(value);
}

/** A number with its noun. */
export function formatCount(count, noun) {
  return `${formatNumber(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Seconds as people say them. */
export function formatDuration(seconds) {
  if (seconds < 60) return `${formatNumber(seconds, 1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A new element with text, elements or both in it. */
export function makeElement(tag, content = [], attributes = {}) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...[content].flat());
  return node;
}

/** Show the problem, and what it was asked of. */
export function showHead(trace) {
  const { header } = trace;
  element("problem").textContent = header.problem;
  const names = header.document?.sources ?? [];
  const more = names.length > 4 ? ` and ${formatNumber(names.length - 4)} more` : "";
  const parts = [names.slice(0, 4).join(", ") + more, header.model, header.workflow && `workflow ${header.workflow}`];
  element("facts").textContent = parts.filter(Boolean).join(" · ");
  document.title = `${header.problem.slice(0, 80)} · memagent`;
}

/** A step described in one line. */
export function stepLine(trace, index) {
  const step = trace.steps[index];
  const parts = [`Step ${formatNumber(index + 1)} of ${formatNumber(trace.steps.length)}`];
  if (step.kind === "answer") parts.push("the answer");
  else if (step.chunkIndex === null) parts.push("no chunk");
  else parts.push(`${step.ofDocument ? "chunk" : "notes"} ${formatNumber(step.chunkIndex + 1)}`);
  parts.push(...notesOf(step));
  const { usage } = step;
  const cached = usage.cached_tokens ? ` (${formatNumber(usage.cached_tokens)} cached)` : "";
  parts.push(`${formatNumber(usage.prompt_tokens)}${cached} + ${formatNumber(usage.completion_tokens)} tokens`);
  parts.push(formatDuration(step.seconds));
  return parts.join(" · ");
}

function notesOf(step) {
  const notes = [];
  if (step.verdict !== null) notes.push(`verdict ${step.verdict > 0 ? "+" : ""}${step.verdict.toFixed(1)}`);
  if (step.kind !== "answer") notes.push(step.changed ? "memory changed" : "memory unchanged");
  if (step.ignored) notes.push(`replied “${step.ignored.slice(0, 80)}”`);
  if (step.split) notes.push("part of a chunk that was split");
  if (step.repeated) notes.push("asked once more");
  if (step.cut) notes.push("reply cut at its token budget");
  if (step.enough) notes.push("enough is known");
  return notes;
}

/**
 * Show a step: its memory, with what changed if `changes`, and the text that it read, with `highlight`, a span of the
 * document, marked in it; `missing` where there is no text.
 */
export function showStep(step, changes, text, highlight, missing) {
  const change = showMemory(step, changes);
  const mark = showText(step, text, highlight, missing);
  scrollTo(element("memory"), change); // last: each offset that is measured has the browser lay out what is new
  scrollTo(element("text"), mark);
}

function scrollTo(box, node) {
  box.scrollTop = node ? Math.max(0, node.offsetTop - box.clientHeight / 3) : 0;
}

/** Show the memory; returns the first change in it. */
function showMemory(step, changes) {
  const box = element("memory");
  const pieces = changes ? diff(step.before, step.memory) : [{ kind: "same", text: step.memory }];
  const nodes = pieces.map(({ kind, text }) => (TAGS[kind] ? makeElement(TAGS[kind], text) : text));
  if (!step.memory && !nodes.some((node) => node.nodeName)) nodes.push(makeHint("The memory is empty."));
  box.replaceChildren(...nodes);
  const size = `${formatNumber(step.memory.length)} characters`;
  const change = step.changed ? `: ${formatNumber(step.added)} added, ${formatNumber(step.removed)} removed` : "";
  element("memory-facts").textContent = size + change;
  return changes && box.querySelector("ins, del");
}

/** Show the text that a step read; returns what is marked in it. */
function showText(step, text, highlight, missing) {
  const box = element("text");
  const [start, end] = step.span ?? [];
  element("text-facts").textContent = step.location;
  if (!step.span) {
    box.replaceChildren(makeHint("This step read no chunk."));
  } else if (!step.ofDocument) {
    box.replaceChildren(makeHint("This step read notes that earlier steps had taken, not the document."));
  } else if (!text) {
    box.replaceChildren(makeHint(missing));
  } else if (highlight && highlight[0] < end && highlight[1] > start) {
    const [from, to] = [Math.max(highlight[0], start), Math.min(highlight[1], end)];
    const mark = makeElement("mark", text.slice(from, to));
    box.replaceChildren(text.slice(start, from), mark, text.slice(to, end));
    return mark;
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
    blocks.push(makeElement("div", text.slice(start, end), { class: "block" }));
  }
  return blocks;
}

function makeHint(text) {
  return makeElement("p", text, { class: "quiet" });
}

/** Show all figures of a read, and its settings. */
export function showTotals(trace) {
  const { totals, header, steps } = trace;
  const rows = [
    ["Steps", `${formatNumber(steps.length)}, of which ${formatNumber(totals.changes)} changed the memory`],
    ["Chunks", `${formatNumber(totals.chunks)}, split: ${formatNumber(trace.splits)}`],
    ["Tokens in", `${formatNumber(totals.prompt)}, cached: ${formatNumber(totals.cached)}`],
    ["Tokens out", formatNumber(totals.completion)],
    ["Replies cut", formatNumber(totals.cut)],
    ["Seconds in calls", formatNumber(totals.seconds, 1)],
    ...Object.entries(header.budgets ?? {}).map(([name, value]) => [name.replaceAll("_", " "), formatNumber(value)]),
    ...["model", "workflow", "tokenizer", "created", "version"].map((name) => [name, header[name]]),
    ["Sampling", Object.entries(header.sampling ?? {}).map(([name, value]) => `${name} ${value}`).join(", ")],
    ["Document", (header.document?.sources ?? []).slice(0, 100).join(", ")],
    ["SHA-256", header.document?.sha256],
  ];
  const nodes = rows
    .filter(([, value]) => value !== undefined && value !== "")
    .flatMap(([name, value]) => [makeElement("dt", name), makeElement("dd", String(value))]);
  element("totals").replaceChildren(...nodes);
}
