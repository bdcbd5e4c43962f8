"""A report's folder: report.md, whose tables stay tables, report.json and the pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent import __version__
from memagent.errors import SettingsError, extra_hint, reason
from memagent.reports import drawing
from memagent.storage import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 2

Pictures = Mapping[str, Path]
"""The files of the pictures that were drawn, by name."""


def write_folder(
    out: Path,
    data: str,
    pictures: Mapping[str, Callable[[], Figure | None]],
    page: Callable[[Pictures | None], str],
) -> list[Path]:
    """Write the report's JSON, the pictures and the page that shows them to `out`; returns the files.

    Without matplotlib, `page` is called with None. Raises `SettingsError` if `out` cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        drawn = drawing.save(pictures, out)
        written = {out / "report.json": data, out / "report.md": page(drawn)}
        for path, text in written.items():
            write_whole(path, text)
    except OSError as error:
        raise SettingsError(f"{out} cannot be written: {reason(error)}") from error
    return [*written, *(drawn or {}).values()]


def as_page(parts: Iterable[str], pictures: Pictures | None) -> str:
    """The non-empty parts of a report, one below the other."""
    note = "" if pictures is not None else f"There are no pictures: {extra_hint('report')}.\n"
    return "\n".join(part for part in (*parts, note) if part)


def picture(name: str, pictures: Pictures | None) -> str:
    """Markdown for a picture, or "" if it was not drawn."""
    return f"![{name}]({pictures[name].name})\n" if pictures and name in pictures else ""


def as_text(data: Mapping[str, Any]) -> str:
    """A report's data as JSON, with the versions of its format and of memagent."""
    return json.dumps({"format": FORMAT, "version": __version__, **data}, indent=2, ensure_ascii=False) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A table whose first `texts` columns are texts, and the others numbers."""
    lines = [heads, ["---" if column < texts else "---:" for column in range(len(heads))], *rows]
    return "".join("| " + " | ".join(map(cell, line)) + " |\n" for line in lines)


def cell(text: str) -> str:
    """Escape a text so that it stays inside its cell, whatever a server put into it."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
