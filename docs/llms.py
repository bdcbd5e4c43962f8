"""Writes llms.txt, the index of the docs for language models, from the site's navigation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from hooks import ELSEWHERE, ROOT  # beside it: this folder is no package

_PLACES = {page: path for path, page in ELSEWHERE.items()}
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_STATEMENT = re.compile(r".+?\.(?= |$)")  # with the questions before it
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def index() -> str:
    """What the project is, and each page with its first statement, under the site's headings."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    lines = [f"# {site['site_name']}", "", f"> {first_paragraph(ROOT / 'README.md')}"]
    for heading, entries in _pairs(site["nav"]):
        lines += ["", f"## {heading}", ""]
        for title, page in _pairs(entries):
            path = _PLACES.get(page, f"docs/{page}")
            about = first_paragraph(ROOT / path)
            statement = _STATEMENT.match(about)
            lines.append(f"- [{title}]({path}): {statement[0] if statement else about}")
    return "\n".join(lines) + "\n"


def _pairs(entries: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [pair for entry in entries for pair in entry.items()]


def first_paragraph(page: Path) -> str:
    """The first paragraph of a page below its title, on one line, without links and emphasis."""
    for paragraph in _FENCE.sub("", page.read_text("utf-8")).split("\n\n"):
        if (paragraph := paragraph.strip()) and paragraph[0] not in "#<!|":
            return " ".join(_LINK.sub(r"\1", paragraph).replace("*", "").split())
    return ""


if __name__ == "__main__":
    (ROOT / "llms.txt").write_text(index(), "utf-8")
