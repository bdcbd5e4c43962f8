"""The pictures in docs/tally.md: the rows that letters.txt was counted from, in light and dark colours.

Needs Debian's chromium, the extras dev and tally, and a model: python benchmarks/tally_picture.py --model
qwen2.5-coder-1.5b-instruct-q4_k_m.gguf. With `--trace`, a read that was interrupted continues.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from pictures import ROOT, Scheme, opened
from playwright.sync_api import Browser, expect, sync_playwright

from memagent.cli import main as memagent

QUESTION = "How much was paid to each supplier in 2025?"
SOURCE = "line 23, under “Letter 4”"
PICTURES: tuple[tuple[Scheme, str], ...] = (("light", "tally.png"), ("dark", "tally-dark.png"))


def read(model: Path, trace: Path, page: Path) -> None:
    """Count from the letters, and make the page of it."""
    resume = ["--resume"] if trace.exists() else []
    plan = ["letters.txt", "--schema", "letters.toml", "--chunk-tokens", "200", "--no-discover"]
    asked = ["tally", QUESTION, *plan, "--model", str(model), "--trace", str(trace), *resume]
    if memagent(asked) or memagent(["view", str(trace), "--out", str(page)]):
        sys.exit(1)


def picture(browser: Browser, page_file: Path, folder: Path, width: int) -> None:
    """Picture the table, its rows sorted by supplier, with a row's place opened and the refused rows."""
    for scheme, name in PICTURES:
        with opened(browser, width, scheme) as page:
            page.goto(page_file.as_uri())
            page.get_by_role("button", name="Supplier").click()
            page.locator("#refused-title").click()
            page.locator("#rows").get_by_role("button", name=SOURCE).click()
            expect(page.locator("#text mark")).to_contain_text("310 euros")  # else it is no good example
            page.screenshot(path=folder / name, full_page=True)


def main() -> None:
    """Read, and make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--trace", type=Path, help="where the read is kept")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--width", type=int, default=1000, help="of the pictures, in pixels")
    options = parser.parse_args()
    folder, model = options.folder.absolute(), options.model.absolute()
    with tempfile.TemporaryDirectory() as name:
        trace = options.trace.absolute() if options.trace else Path(name) / "letters.jsonl"
        os.chdir(ROOT / "docs" / "cases")
        read(model, trace, Path(name) / "page.html")  # before playwright, which has a loop of its own
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            picture(browser, Path(name) / "page.html", folder, options.width)
            browser.close()


if __name__ == "__main__":
    main()
