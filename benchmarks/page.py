"""How long a journal of many steps takes to open in the page, and what a step of the slider costs.

Needs chromium and the extra dev: python benchmarks/page.py --steps 10000. The main thread is timed in
processor seconds, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from measure import STORY
from playwright.sync_api import CDPSession, Page, expect, sync_playwright

from memagent.cli import main as memagent

CHUNK_CHARACTERS = 20_000
MEMORY_SENTENCES = 45
DRAG = """async (frames) => {
  const slider = document.querySelector("#slider");
  for (let frame = 0; frame < frames; frame += 1) {
    slider.value = 1 + Math.floor((frame * slider.max) / frames);
    slider.dispatchEvent(new Event("input"));
    await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  }
}"""


def sentences(draw: random.Random, count: int) -> list[str]:
    """Sentences of 14 random words each."""
    known = STORY.read_text("utf-8").replace(".", "").split()
    return [" ".join(draw.choices(known, k=14)).capitalize() + "." for _ in range(count)]


def write_text(path: Path, steps: int, draw: random.Random) -> str:
    """Write a text of `steps` chunks; returns its fingerprint as in a journal."""
    known, digest = sentences(draw, 3000), sha256()
    with path.open("wb") as file:
        for _ in range(steps):
            chunk = "\n".join(draw.choices(known, k=CHUNK_CHARACTERS // 60)).encode("ascii", "replace")
            raw = chunk[: CHUNK_CHARACTERS - 1].ljust(CHUNK_CHARACTERS - 1) + b"\n"
            digest.update(raw)
            file.write(raw)
    return sha256(digest.digest()).hexdigest()


def journal(text: Path, fingerprint: str, steps: int, draw: random.Random) -> Iterator[dict[str, object]]:
    """The lines of a journal in which about every second step changes the memory."""
    yield {
        "type": "header", "format": 2, "problem": "What happened?", "memory": "", "model": "scripted",
        "document": {"sha256": fingerprint, "sources": [str(text)]}, "workflow": "gated",
        "budgets": {"chunk_tokens": 5000, "memory_tokens": 1024},
    }  # fmt: skip
    known, memory = sentences(draw, 5000), list[str]()
    usage = {"prompt_tokens": 6200, "completion_tokens": 1000, "cached_tokens": 0}
    for step in range(steps):
        if draw.random() < 0.5:
            memory = [*draw.sample(memory, min(len(memory), MEMORY_SENTENCES - 3)), draw.choice(known)]
        reply = " ".join(memory)
        yield {"type": "reply", "prompt_sha256": f"{step:016x}", "reply": reply, "finish_reason": "stop",
               "usage": usage}  # fmt: skip
        yield {
            "type": "conversation", "kind": "update", "chunk_index": step, "source": str(text),
            "span": [step * CHUNK_CHARACTERS, (step + 1) * CHUNK_CHARACTERS], "prompt_sha256": f"{step:016x}",
            "finish_reason": "stop", "usage": usage, "memory": reply, "enough": False, "seconds": 2.5,
        }  # fmt: skip
    yield {"type": "answer", "answer": memory[-1]}


def write_journal(path: Path, lines: Iterator[dict[str, object]]) -> None:
    """Write the lines as a log does, without waiting for the disk."""
    with path.open("wb") as file:
        for line in lines:
            body = json.dumps(line).encode()
            file.write(body[:-1] + b', "crc32": "%08x"}\n' % zlib.crc32(body))


def processor_seconds(session: CDPSession) -> float:
    """The processor time that the page's main thread has used so far."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


def measure(page: Page, trace: Path, page_file: Path, steps: int, frames: int) -> dict[str, float]:
    """Open the journal by itself and the page made of it, then drag the slider from end to end."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    status, measured = page.locator("#status"), {}
    page.goto(page_file.with_name("empty.html").as_uri())
    expect(status).to_contain_text("opened in")
    started, before = time.perf_counter(), processor_seconds(session)
    page.locator("#file").set_input_files(trace)
    expect(status).to_contain_text(f"{trace.name}: {steps:,} steps, opened in", timeout=300_000)
    measured["open_journal_seconds"] = time.perf_counter() - started
    measured["open_journal_processor_seconds"] = processor_seconds(session) - before
    started = time.perf_counter()
    page.goto(page_file.as_uri())
    expect(status).to_contain_text("opened in", timeout=300_000)
    measured["open_page_seconds"] = time.perf_counter() - started
    expect(page.locator("#text .block, #text mark").first).to_be_visible(timeout=300_000)
    measured["open_page_with_text_seconds"] = time.perf_counter() - started
    started, before = time.perf_counter(), processor_seconds(session)
    page.evaluate(DRAG, frames)
    measured["step_seconds"] = (time.perf_counter() - started) / frames
    measured["step_processor_seconds"] = (processor_seconds(session) - before) / frames
    return measured


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("page.json"))
    options = parser.parse_args()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        trace, small, page_file = folder / "trace.jsonl", folder / "small.jsonl", folder / "page.html"
        fingerprint = write_text(folder / "text.txt", options.steps, draw)
        write_journal(trace, journal(folder / "text.txt", fingerprint, options.steps, draw))
        write_journal(small, journal(folder / "text.txt", fingerprint, 10, draw))
        memagent(["view", str(small), "--out", str(folder / "empty.html"), "--without-text"])
        started = time.perf_counter()
        memagent(["view", str(trace), "--out", str(page_file)])
        measured = {"steps": options.steps, "journal_bytes": trace.stat().st_size,
                 "text_bytes": (folder / "text.txt").stat().st_size, "page_bytes": page_file.stat().st_size,
                 "make_page_seconds": time.perf_counter() - started}  # fmt: skip
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        measured |= measure(page, trace, page_file, options.steps, options.frames)
        measured["load"] = os.getloadavg()[0]
        browser.close()
    for key, value in measured.items():
        print(f"{key:32}{value:>14,.4g}" if isinstance(value, float) else f"{key:32}{value:>14,}")
    options.out.write_text(json.dumps(measured, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
