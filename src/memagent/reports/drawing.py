"""Drawing helpers for all reports, with matplotlib (the extra `report`) and without a display.

Colours are Okabe and Ito's, which the colour-blind can tell apart; every line also has its own marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
_MARKERS = "osD^vPX*"
_DASHES = ("-", "--", "-.", ":")
_STYLE: Any = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 2,
    "lines.markersize": 7,
    "figure.dpi": 150,
}


def save(pictures: Mapping[str, Callable[[], Figure | None]], out: Path) -> dict[str, Path] | None:
    """Draw the pictures into `out`, and return each one's file by name; None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    drawn = {}
    with matplotlib.rc_context(_STYLE):
        for name, picture in pictures.items():
            if figure := picture():
                drawn[name] = out / f"{name.replace(' ', '_')}.png"
                figure.savefig(drawn[name], bbox_inches="tight", metadata={"Software": None})
    return drawn


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with panels of the given size in inches, without pyplot's global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(rows * columns)]


def plain(name: str) -> str:
    """A name for matplotlib, which takes dollars for formulas and hides what begins with an underscore."""
    text = name.encode("utf-8", "backslashreplace").decode().replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def style(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of the line with this number."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number % len(_DASHES)],
    }


def legend(figure: Figure, panel: Axes) -> None:
    """The names of a panel's lines, beside all panels."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, handlelength=2.6)
