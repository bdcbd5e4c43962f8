// The answer, and where the text says it. `guide` tells the place of a source in words, and opens it.

import { markdown } from "./markdown.js";
import { element, made, shown } from "./view.js";

const UNSUPPORTED = "The text does not say so in these words.";
const ORDINAL = /^\d{1,3}[.)]$/; // of a list: no statement, although a full stop ends it

/** The answer once, with numbers that lead to its sources; what is told instead while there is none. */
export function showAnswer(trace, waiting, guide) {
  element("answer-title").hidden = trace.answer === null;
  const box = element("answer");
  if (trace.answer === null) {
    box.replaceChildren(made("p", waiting.text, { class: waiting.failed ? "alert" : "quiet" }));
  } else if (!trace.found) {
    box.replaceChildren(made("p", trace.answer, { class: "quiet" }));
  } else {
    const statements = (trace.statements ?? []).filter((it) => !ORDINAL.test(it.text));
    const sources = numbered(statements);
    const marks = statements.length > 1 ? marksOf(trace.answer, statements, sources, guide) : [];
    const said = made("div", markdown(trace.answer, marks), { class: "said" });
    const beside = statements.length ? [sourcesOf(statements, sources, guide)] : [];
    box.replaceChildren(said, ...beside);
  }
}

/** Where the memory's statements come from, as it is at the end of the read so far. */
export function showRemembered(trace, guide) {
  const { remembered } = trace;
  element("remembered-section").hidden = !remembered.length;
  const supported = remembered.filter((it) => it.source).length;
  element("remembered-facts").textContent = `${shown(supported)} of ${shown(remembered.length)} with a source`;
  const items = remembered.map(({ text, source }) => {
    const place = source ? sourceOf({ text, source }, guide) : [made("span", UNSUPPORTED, { class: "quiet" })];
    return made("li", [made("span", text), ...place], source ? {} : { class: "unsupported" });
  });
  element("remembered").replaceChildren(...items);
}

/** The sources of statements by their places, each with its number and the first statement that it supports. */
function numbered(statements) {
  const sources = new Map();
  for (const it of statements.filter(({ source }) => source)) {
    const key = keyOf(it.source);
    if (!sources.has(key)) sources.set(key, { ...it, number: sources.size + 1 });
  }
  return sources;
}

function keyOf({ file, start, end }) {
  return `${start} ${end} ${file}`;
}

/** The numbers of the sources, to stand behind the statements of an answer. */
function marksOf(answer, statements, sources, guide) {
  const marks = [];
  let place = 0;
  for (const { text, source } of statements) {
    const start = answer.indexOf(text, place);
    if (start < 0) continue;
    place = start + text.length;
    if (!source) continue;
    const { number } = sources.get(keyOf(source));
    const label = { type: "button", class: "link", "aria-label": `Source ${number}` };
    marks.push({ place, node: made("sup", opening(made("button", String(number), label), source, guide)) });
  }
  return marks;
}

function sourcesOf(statements, sources, guide) {
  const items = [...sources.values()].map((it) => made("li", sourceOf(it, guide)));
  const bare = statements.filter((it) => !it.source).length;
  const told = bare === statements.length ? UNSUPPORTED : `Without a number: ${lowered(UNSUPPORTED)}`;
  return made("aside", [
    ...(items.length ? [made("ol", items, statements.length > 1 ? {} : { class: "single" })] : []),
    ...(bare ? [made("p", told, { class: "unsupported quiet" })] : []),
  ], { class: "sources", "aria-label": "Sources" });
}

/** What a source says, if not the statement word for word, and where. */
function sourceOf({ text, source }, guide) {
  const quoted = bared(source.excerpt) === bared(text) ? [] : [made("q", source.excerpt)];
  const place = made("button", guide.tell(source), { type: "button", class: "link", title: "Show in the text" });
  return [...quoted, opening(place, source, guide)];
}

function opening(button, source, guide) {
  button.addEventListener("click", () => guide.open(source));
  return button;
}

function bared(text) {
  return text.replace(/[*_`]/g, "").replace(/\s+/g, " ").trim();
}

function lowered(sentence) {
  return sentence[0].toLowerCase() + sentence.slice(1);
}
