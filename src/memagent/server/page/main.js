// The page: journals that are dropped on it, opened, or in it from the start.

import { Asking } from "./asking.js";
import { readEmbedded } from "./embedded.js";
import { isJournal, readJournal, Unusable } from "./journal.js";
import { Screen } from "./screen.js";
import { Characters, textOf } from "./text.js";
import { Trace } from "./trace.js";
import { element, formatCount, formatNumber } from "./view.js";

const UNFINISHED = "There is no answer yet: this read was not finished.";
const screen = new Screen();
let asking = null; // where a server answers

/** Say what the page is doing. */
function say(text) {
  element("status").textContent = text;
}

/** Say why something did not work; without a text, take that back. */
function showError(text = "") {
  element("problem-told").textContent = text;
  element("problem-told").hidden = !text;
  element("problem-told").scrollIntoView({ block: "nearest" });
}

/** Do something that files may spoil. */
async function attempt(work) {
  showError();
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return; // something else is shown by now
    say("");
    showError(error instanceof Unusable ? error.message : `This did not work: ${error.message}`);
  }
}

async function openJournal(blob, name) {
  const started = performance.now();
  const trace = new Trace();
  let percent = 0;
  const onProgress = (part) => {
    const now = Math.floor(part * 100);
    if (now !== percent) say(`Reading ${name}: ${(percent = now)}%`);
  };
  await readJournal(blob, (line) => trace.add(line), name, onProgress);
  asking?.forget();
  screen.open(trace, UNFINISHED);
  if (asking) element("again").hidden = false;
  await new Promise(requestAnimationFrame); // the screen draws in this frame, and asked for it first
  const seconds = (performance.now() - started) / 1000;
  say(`${name}: ${formatCount(trace.steps.length, "step")}, opened in ${formatNumber(seconds, 2)} s`);
}

/** Files that a person gives: at most one journal, and the text that was read. */
async function take(files) {
  const journals = [];
  const others = [];
  for (const file of files) ((await isJournal(file)) ? journals : others).push(file);
  if (journals.length > 1) throw new Unusable("These are several journals: drop one of them.");
  if (!journals.length && asking && !screen.trace?.header.document?.sha256) return asking.choose(others);
  if (!journals.length && !screen.trace) {
    const names = others.map((file) => file.name).join(", ");
    throw new Unusable(`${names}: not a journal. memagent ask --trace FILE writes one.`);
  }
  if (journals.length) await openJournal(journals[0], journals[0].name);
  if (others.length) {
    screen.setText(await textOf(others, screen.trace));
    say(`${others.map((file) => file.name).join(", ")}: the text that was read`);
  }
}

function listenToFiles() {
  const files = (list) => [...list];
  element("file").addEventListener("change", (event) => {
    const chosen = files(event.target.files);
    event.target.value = "";
    if (chosen.length) attempt(() => take(chosen));
  });
  let depth = 0; // of elements that a file is dragged over
  const show = (change) => {
    depth = Math.max(0, depth + change);
    element("drop").hidden = depth === 0;
  };
  addEventListener("dragenter", (event) => event.dataTransfer?.types.includes("Files") && show(1));
  addEventListener("dragleave", (event) => event.dataTransfer?.types.includes("Files") && show(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    show(-depth);
    const dropped = files(event.dataTransfer.files);
    if (dropped.length) attempt(() => take(dropped));
  });
}

/** Open what is in the page from the start. */
async function openEmbedded() {
  const name = element("embedded-journal")?.dataset.name;
  const journal = await readEmbedded("embedded-journal");
  if (!journal) return;
  await openJournal(journal, name);
  if (element("embedded-text")) screen.missing = "The text is being unpacked.";
  const text = await readEmbedded("embedded-text");
  if (text) screen.setText(new Characters(await text.text()));
}

element("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the read, not a place on the page
  element("main").focus();
});
listenToFiles();
if (document.documentElement.dataset.served) {
  asking = new Asking(screen, attempt, say);
  await attempt(() => asking.follow());
} else {
  await attempt(openEmbedded);
}
