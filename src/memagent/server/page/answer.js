// The answer, and where the text says it. `guide` tells the place of a source in words, and opens it.

import { markdown } from "./markdown.js";
import { element, made, shown } from "./view.js";

const UNSUPPORTED = "The text does not say so in these words.";
const NEAREST = "Nearest passage, other words:";
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
    const passages = numbered(statements);
    const marks = statements.length > 1 ? marksOf(trace.answer, statements, passages, guide) : [];
    const said = made("div", markdown(trace.answer, marks), { class: "said" });
    const beside = statements.length ? [sourcesOf(statements, passages, guide)] : [];
    box.replaceChildren(said, ...beside);
  }
}

/** Where the memory's statements come from, as it is at the end of the read so far. */
export function showRemembered(trace, guide) {
  const { remembered } = trace;
  element("remembered-section").hidden = !remembered.length;
  const supported = remembered.filter((it) => it.source).length;
  element("remembered-facts").textContent = `${shown(supported)} of ${shown(remembered.length)} with a source`;
  const items = remembered.map((it) => {
    const told = passagesOf(it).flatMap((passage) => described(passage, guide));
    if (!told.length) told.push(made("span", UNSUPPORTED, { class: "quiet" }));
    return made("li", [made("span", it.text), ...told], it.source ? {} : { class: "unsupported" });
  });
  element("remembered").replaceChildren(...items);
}

/** Where the text says a statement; if nowhere, the passages nearest to it. */
function passagesOf({ text, source, nearest }) {
  return source ? [{ text, source }] : nearest.map((it) => ({ text, source: it, isNear: true }));
}

/** The passages of statements by their places, each with its number. */
function numbered(statements) {
  const passages = new Map();
  for (const it of statements.flatMap(passagesOf)) {
    if (!passages.has(keyOf(it))) passages.set(keyOf(it), { ...it, number: passages.size + 1 });
  }
  return passages;
}

function keyOf({ source, isNear }) {
  return `${source.start} ${source.end} ${Boolean(isNear)} ${source.file}`;
}

/** The numbers of the passages, to stand behind the statements of an answer. */
function marksOf(answer, statements, passages, guide) {
  const marks = [];
  let place = 0;
  for (const statement of statements) {
    const start = answer.indexOf(statement.text, place);
    if (start < 0) continue;
    place = start + statement.text.length;
    for (const it of passagesOf(statement)) {
      const { number } = passages.get(keyOf(it));
      const label = `${it.isNear ? "Nearest passage" : "Source"} ${number}`;
      const button = made("button", String(number), { type: "button", class: "link", "aria-label": label });
      marks.push({ place, node: made("sup", opening(button, it.source, guide)) });
    }
  }
  return marks;
}

function sourcesOf(statements, passages, guide) {
  const items = [...passages.values()].map((it) => made("li", described(it, guide)));
  const bare = statements.filter((it) => !passagesOf(it).length).length;
  const told = bare === statements.length ? UNSUPPORTED : `Without a number: ${lowered(UNSUPPORTED)}`;
  return made("aside", [
    ...(items.length ? [made("ol", items, statements.length > 1 ? {} : { class: "single" })] : []),
    ...(bare ? [made("p", told, { class: "unsupported quiet" })] : []),
  ], { class: "sources", "aria-label": "Sources" });
}

/** What a passage says, if not the statement word for word, and where. */
function described({ text, source, isNear }, guide) {
  const kind = isNear ? [made("span", NEAREST, { class: "kind" })] : [];
  const quoted = bared(source.excerpt) === bared(text) ? [] : [made("q", source.excerpt)];
  const place = made("button", guide.tell(source), { type: "button", class: "link", title: "Show in the text" });
  return [...kind, ...quoted, opening(place, source, guide)];
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
