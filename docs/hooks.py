"""Puts pages from outside docs/ on the site, and keeps the links between all of them working.

A link to a file that the site does not have becomes the file's path in the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "presets/small/NOTES.md": "small-notes.md",
}
"""Where these pages of the repository stand on the site."""

_HOME = {page: path for path, page in ELSEWHERE.items()}
_FENCES = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from elsewhere."""
    for path, page in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Rewrite links, which are written for the repository."""
    here = page.file.src_uri
    folder = posixpath.dirname(_HOME.get(here, f"docs/{here}"))

    def rewritten(link: re.Match[str]) -> str:
        image, text, target, anchor = link.groups(default="")
        path = posixpath.normpath(posixpath.join(folder, target))
        on_site = ELSEWHERE.get(path) or path.removeprefix("docs/")
        if (path in ELSEWHERE or path.startswith("docs/")) and files.get_file_from_path(on_site):
            relative = posixpath.relpath(on_site, posixpath.dirname(here) or ".")
            return f"{image}[{text}]({relative}{anchor})"
        return f"{text} (`{path}`)"

    parts = _FENCES.split(markdown)  # every second part is code
    parts[::2] = [_LINK.sub(rewritten, part) for part in parts[::2]]
    return "".join(parts)
