"""The pictures in docs/page.md: a read by the default model, in light and dark colours, and a server's form.

Needs Debian's chromium and fonts-dejavu-core, the extra dev, and the default model (`memagent models fetch`,
or its file: `--model`): python benchmarks/pictures.py. With `--trace`, a read that was interrupted continues.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, expect, sync_playwright

from memagent.cli import main as memagent

ROOT = Path(__file__).parent.parent
STORY = "examples/blue_carbuncle.txt"
QUESTION = "What is the name of the plumber who was accused of the robbery?"
ANSWER = "Horner"
NOTES = sorted(ROOT.glob("examples/office/*.md"))
NOTES_QUESTION = "Where is the new office?"
Scheme = Literal["light", "dark"]
HEIGHT = 900
READ_MILLISECONDS = 600_000


def read(model: list[str], trace: Path, page: Path) -> None:
    """Read the story, and make the page of it."""
    resume = ["--resume"] if trace.exists() else []
    asked = ["ask", QUESTION, STORY, "--no-discover", "--cite", "--trace", str(trace), *resume, *model]
    if memagent(asked) or memagent(["view", str(trace), "--out", str(page)]):
        sys.exit(1)


@contextmanager
def opened(browser: Browser, width: int, scheme: Scheme = "light") -> Iterator[Page]:
    """A page that is closed in the end."""
    page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme, locale="en-GB")
    yield page
    page.close()


def picture_read(browser: Browser, page_file: Path, folder: Path, width: int) -> None:
    """Picture the read as it opens: at the step that brought the answer, whose source is marked."""
    pictures: tuple[tuple[Scheme, str], ...] = (("light", "page.png"), ("dark", "page-dark.png"))
    for scheme, name in pictures:
        with opened(browser, width, scheme) as page:
            page.goto(page_file.as_uri())
            expect(page.locator("#answer .said")).to_contain_text(ANSWER)  # else it is no good example
            expect(page.locator("#text mark")).to_be_visible()
            page.screenshot(path=folder / name)


@contextmanager
def serve(model: list[str], data: Path) -> Iterator[str]:
    """The address of a server of the model."""
    flags = ["--no-discover", "--port", "0", "--data", str(data), *model]
    command = [sys.executable, "-m", "memagent", "serve", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            address_line = next((line for line in server.stderr or () if " at http" in line), "")
            yield address_line.partition(" at ")[2].partition("/v1")[0] + "/"
        finally:
            server.terminate()


def picture_form(browser: Browser, address: str, folder: Path, width: int) -> None:
    """Read the notes, and picture the form with its options open, above the list of reads."""
    with opened(browser, min(width, HEIGHT)) as page:
        page.goto(address)
        page.get_by_label("Question").fill(NOTES_QUESTION)
        page.get_by_label("Files").set_input_files(NOTES)
        page.get_by_role("button", name="Read it").click()
        expect(page.locator("#answer .said")).to_be_visible(timeout=READ_MILLISECONDS)
        page.get_by_role("button", name="Another document").click()
        page.get_by_label("Question").fill(QUESTION)
        page.get_by_label("Files").set_input_files(ROOT / STORY)
        page.get_by_text("Options").click()
        page.locator("body").click(position={"x": 1, "y": 1})  # nothing is in focus
        page.screenshot(path=folder / "page-form.png", full_page=True)


def main() -> None:
    """Read, and make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="the file of the default model, if it is not in the cache")
    parser.add_argument("--trace", type=Path, help="where the read of the story is kept")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--width", type=int, default=1200, help="of the pictures, in pixels")
    options = parser.parse_args()
    for name in ("OPENAI_BASE_URL", "MEMAGENT_BASE_URL", "MEMAGENT_MODEL"):
        os.environ.pop(name, None)  # the default model, whatever is set
    model = ["--model", str(Path(options.model).absolute())] if options.model else []
    folder = options.folder.absolute()
    with tempfile.TemporaryDirectory() as name:
        trace = options.trace.absolute() if options.trace else Path(name) / "plumber.jsonl"
        os.chdir(ROOT)  # the page shows the story's path as it was given
        read(model, trace, Path(name) / "page.html")  # before playwright, which has a loop of its own
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            picture_read(browser, Path(name) / "page.html", folder, options.width)
            with serve(model, Path(name) / "data") as address:
                picture_form(browser, address, folder, options.width)
            browser.close()


if __name__ == "__main__":
    main()
