// The answer, and where the text says it. `guide` describes the place of a source in words, and opens it.

import { markdown } from "./markdown.js";
import { element, formatNumber, makeElement } from "./view.js";

const UNSUPPORTED = "The text does not say so in these words.";
const NEAREST = "Nearest passage, other words:";
const ORDINAL = /^\d{1,3}[.)]$/; // of a list: no statement, although a full stop ends it

/** Show the answer once, with numbers that lead to its sources; while there is none, the text of `waiting`. */
export function showAnswer(trace, waiting, guide) {
  element("answer-title").hidden = trace.answer === null;
  const box = element("answer");
  if (trace.answer === null) {
    box.replaceChildren(makeElement("p", waiting.text, { class: waiting.failed ? "alert" : "quiet" }));
  } else if (!trace.found) {
    box.replaceChildren(makeElement("p", trace.answer, { class: "quiet" }));
  } else {
    const statements = (trace.statements ?? []).filter(({ text }) => !ORDINAL.test(text));
    const passages = numberPassages(statements);
    const marks = statements.length > 1 ? marksOf(trace.answer, statements, passages, guide) : [];
    const answer = makeElement("div", markdown(trace.answer, marks), { class: "said" });
    const sources = statements.length ? [sourcesOf(statements, passages, guide)] : [];
    box.replaceChildren(answer, ...sources);
  }
}

/** Show where the memory's statements come from, as it is at the end of the read so far. */
export function showRemembered(trace, guide) {
  const { remembered } = trace;
  element("remembered-section").hidden = !remembered.length;
  const supported = formatNumber(remembered.filter(({ source }) => source).length);
  element("remembered-facts").textContent = `${supported} of ${formatNumber(remembered.length)} with a source`;
  const items = remembered.map((statement) => {
    const nodes = passagesOf(statement).flatMap((passage) => describePassage(passage, guide));
    if (!nodes.length) nodes.push(makeElement("span", UNSUPPORTED, { class: "quiet" }));
    const attributes = statement.source ? {} : { class: "unsupported" };
    return makeElement("li", [makeElement("span", statement.text), ...nodes], attributes);
  });
  element("remembered").replaceChildren(...items);
}

/** Where the text says a statement; if nowhere, the passages nearest to it. */
function passagesOf({ text, source, nearest }) {
  return source ? [{ text, source }] : nearest.map((passage) => ({ text, source: passage, isNear: true }));
}

/** The passages of statements by their keys, each with its number. */
function numberPassages(statements) {
  const passages = new Map();
  for (const passage of statements.flatMap(passagesOf)) {
    const key = keyOf(passage);
    if (!passages.has(key)) passages.set(key, { ...passage, number: passages.size + 1 });
  }
  return passages;
}

function keyOf({ source, isNear }) {
  return `${source.start} ${source.end} ${Boolean(isNear)} ${source.file}`;
}

/** The numbers of the passages, to stand behind the statements of an answer. */
function marksOf(answer, statements, passages, guide) {
  const marks = [];
  let offset = 0;
  for (const statement of statements) {
    const start = answer.indexOf(statement.text, offset);
    if (start < 0) continue;
    offset = start + statement.text.length;
    for (const passage of passagesOf(statement)) {
      const { number } = passages.get(keyOf(passage));
      const label = `${passage.isNear ? "Nearest passage" : "Source"} ${number}`;
      const attributes = { type: "button", class: "link", "aria-label": label };
      const button = makeElement("button", String(number), attributes);
      marks.push({ offset, node: makeElement("sup", openOnClick(button, passage.source, guide)) });
    }
  }
  return marks;
}

function sourcesOf(statements, passages, guide) {
  const items = [...passages.values()].map((passage) => makeElement("li", describePassage(passage, guide)));
  const bare = statements.filter((statement) => !passagesOf(statement).length).length;
  const remark = bare === statements.length ? UNSUPPORTED : `Without a number: ${lowerFirst(UNSUPPORTED)}`;
  return makeElement("aside", [
    ...(items.length ? [makeElement("ol", items, statements.length > 1 ? {} : { class: "single" })] : []),
    ...(bare ? [makeElement("p", remark, { class: "unsupported quiet" })] : []),
  ], { class: "sources", "aria-label": "Sources" });
}

/** The nodes for a passage: what it says, if not the statement word for word, and where. */
function describePassage({ text, source, isNear }, guide) {
  const kind = isNear ? [makeElement("span", NEAREST, { class: "kind" })] : [];
  const isSame = stripMarkup(source.excerpt) === stripMarkup(text);
  const quote = isSame ? [] : [makeElement("q", source.excerpt)];
  const attributes = { type: "button", class: "link", title: "Show in the text" };
  const button = makeElement("button", guide.describe(source), attributes);
  return [...kind, ...quote, openOnClick(button, source, guide)];
}

function openOnClick(button, source, guide) {
  button.addEventListener("click", () => guide.open(source));
  return button;
}

function stripMarkup(text) {
  return text.replace(/[*_`]/g, "").replace(/\s+/g, " ").trim();
}

function lowerFirst(sentence) {
  return sentence[0].toLowerCase() + sentence.slice(1);
}
