// The rows that an answer was counted from: a table that sorts, where each row leads to its place in the text.

import { element, formatCount, formatNumber, makeElement } from "./view.js";

const MAX_ROWS = 1000; // on the page: the browser lays them all out
const CURRENCY = "_currency";
const PLACE = "place";
const collator = new Intl.Collator("en", { numeric: true });

/** The table of one read, and how it is sorted. */
export class RowTable {
  /** Show what an answer was counted from, or nothing if it was not. `guide` describes the places, and opens them. */
  show(table, guide) {
    this.guide = guide;
    element("table-section").hidden = !table;
    if (table && table !== this.table) this.begin(table);
    if (table) this.showRows(); // again: places have lines once the text is known
  }

  begin(table) {
    const { coverage, plan, refused, rows } = table;
    Object.assign(this, { table, by: PLACE, direction: 1 });
    const heads = [...plan.fields, { name: PLACE }].map((field) => {
      const button = makeElement("button", headOf(field), { type: "button", title: field.meaning || "Sort" });
      button.addEventListener("click", () => this.sort(field.name));
      return makeElement("th", button, { scope: "col", "data-name": field.name, ...classOf(field) });
    });
    element("table-facts").textContent = describeCoverage(coverage);
    element("rows-head").replaceChildren(makeElement("tr", heads));
    element("rows-scroll").hidden = !rows.length;
    element("rows-left").hidden = rows.length <= MAX_ROWS;
    const part = `The first ${formatNumber(MAX_ROWS)} of ${formatCount(rows.length, "row")} in this order.`;
    element("rows-left").textContent = `${part} memagent tally --out has them all.`;
    element("refused-section").hidden = !refused.length;
    element("refused-title").textContent = `${formatCount(refused.length, "row")} refused`;
    element("refused").replaceChildren(...refused.slice(0, MAX_ROWS).map((row) => this.refusedItem(row)));
    element("sql").textContent = plan.sql;
  }

  refusedItem({ file, ...values }) {
    const pairs = Object.entries(values).map(([name, value]) => `${name}: ${value}`);
    return makeElement("li", [pairs.join(", "), ...(this.guide.files.length > 1 ? [` (${file})`] : [])]);
  }

  /** Sort by a column, or the other way round if it is sorted by that already. */
  sort(name) {
    this.direction = name === this.by ? -this.direction : 1;
    this.by = name;
    this.showRows();
  }

  showRows() {
    const { by, direction, table } = this;
    const { fields } = table.plan;
    for (const head of element("rows-head").querySelectorAll("th")) {
      if (head.dataset.name !== by) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    }
    const rows = [...table.rows]; // in the order of the document
    if (by !== PLACE) rows.sort((one, other) => compare(one, other, by, direction));
    else if (direction < 0) rows.reverse();
    const lines = rows.slice(0, MAX_ROWS).map((row) => {
      const cells = fields.map((field) => makeElement("td", cellOf(row, field), classOf(field)));
      return makeElement("tr", [...cells, makeElement("td", this.placeButton(row))]);
    });
    element("rows").replaceChildren(...lines);
  }

  placeButton({ source }) {
    const attributes = { type: "button", class: "link", title: source.excerpt };
    const button = makeElement("button", this.guide.describe(source), attributes);
    button.addEventListener("click", () => this.guide.open(source));
    return button;
  }
}

function headOf({ name }) {
  const words = name.replaceAll("_", " ");
  return words[0].toUpperCase() + words.slice(1);
}

function classOf({ type }) {
  return type === "number" || type === "money" ? { class: "number" } : {};
}

function cellOf({ values, unparsed }, { name, type }) {
  const value = values[name];
  if (value === null || value === undefined) return "";
  if (unparsed.includes(name)) return [`${value} `, makeElement("span", "not understood", { class: "unparsed" })];
  if (type === "yes/no") return value ? "yes" : "no";
  const currency = values[name + CURRENCY];
  const text = typeof value === "number" ? formatNumber(value, 6) : value;
  return currency ? `${text} ${currency}` : text;
}

/** The order of two rows by a field; what was not understood and what is missing stand last in either direction. */
function compare(one, other, name, direction) {
  const rank = rankOf(one, name) - rankOf(other, name);
  if (rank) return rank;
  const currencies = [one, other].map(({ values }) => values[name + CURRENCY] ?? "");
  const [first, second] = [one.values[name], other.values[name]];
  const numbers = typeof first === "number" && typeof second === "number";
  const order = numbers ? first - second : collator.compare(first ?? "", second ?? "");
  return direction * (collator.compare(...currencies) || order);
}

function rankOf({ values, unparsed }, name) {
  if (unparsed.includes(name)) return 1;
  return values[name] === null || values[name] === undefined ? 2 : 0;
}

/** How much was read for the table. */
function describeCoverage(coverage) {
  const read = coverage.chunks - coverage.passed_over - coverage.failed;
  const chunks = `${formatNumber(read)} of ${formatCount(coverage.chunks, "chunk")}`;
  const parts = [`${formatCount(coverage.rows, "row")} in ${chunks}`];
  if (coverage.failed) parts.push(`${formatCount(coverage.failed, "chunk")} could not be read`);
  if (coverage.passed_over) parts.push(`${formatCount(coverage.passed_over, "chunk")} passed over`);
  if (coverage.refused) parts.push(`${formatCount(coverage.refused, "row")} refused`);
  if (coverage.merged) parts.push(`${formatCount(coverage.merged, "row")} read twice`);
  if (coverage.unparsed) parts.push(`${formatCount(coverage.unparsed, "value")} not understood`);
  if (coverage.from_tables) parts.push(`${formatCount(coverage.from_tables, "row")} from tables, without a model`);
  return parts.join(" · ");
}
