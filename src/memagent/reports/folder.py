"""The folder that a report is: report.md, report.json and the pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent import __version__
from memagent.errors import SettingsError, extra_hint
from memagent.reports import drawing
from memagent.storage import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 2

Pictures = Mapping[str, Path]
"""The files of the pictures that were drawn, by name."""


def write_folder(
    out: Path,
    told: str,
    pictures: Mapping[str, Callable[[], Figure | None]],
    page: Callable[[Pictures | None], str],
) -> list[Path]:
    """Write the JSON `told`, the pictures and the page that shows them to `out`; returns the files.

    Without matplotlib the page is made with None. Raises `SettingsError` if `out` cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        drawn = drawing.save(pictures, out)
        written = {out / "report.json": told, out / "report.md": page(drawn)}
        for path, text in written.items():
            write_whole(path, text)
    except OSError as error:
        raise SettingsError(f"{out} cannot be written: {error.strerror or error}") from error
    return [*written, *(drawn or {}).values()]


def as_page(parts: Iterable[str], pictures: Pictures | None) -> str:
    """The parts of a report that are not empty, one below the other."""
    note = "" if pictures is not None else f"There are no pictures: {extra_hint('report')}.\n"
    return "\n".join(part for part in (*parts, note) if part)


def picture(name: str, pictures: Pictures | None) -> str:
    """The picture of a name, or nothing if it was not drawn."""
    return f"![{name}]({pictures[name].name})\n" if pictures and name in pictures else ""


def as_text(told: Mapping[str, Any]) -> str:
    """What a report tells as JSON, with the versions that it was made by."""
    return json.dumps({"format": FORMAT, "version": __version__, **told}, indent=2, ensure_ascii=False) + "\n"
