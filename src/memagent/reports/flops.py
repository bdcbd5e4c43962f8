"""A report on the FLOPs of workflows by the document's length: a table and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memagent.evaluation.flops import Shape
from memagent.evaluation.statistics import Size, growth
from memagent.reports import drawing
from memagent.reports.folder import Pictures, as_page, as_text, cell, picture, table, write_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Flops = Mapping[str, Mapping[int, int]]
"""By workflow and length in tokens."""

_PICTURE = "flops by length"
_TOLD = """\
In 10^15 floating-point operations. Memories and replies fill their budgets, every note is new, no prefix \
cache helps: as a rule a read takes less. Growth: the exponent b of FLOPs = a × length^b, fitted by least \
squares over logarithms; linear reading has 1."""


def flops_table(found: Flops) -> str:
    """A row for each workflow, a column for each length, and the growth."""
    lengths = next(iter(found.values()))
    rows = [
        [name, *(_number(flops / 1e15) for flops in by_length.values()), _exponent(by_length)]
        for name, by_length in found.items()
    ]
    return table(["10^15 FLOPs", *(str(Size("tokens", it)) for it in lengths), "growth"], rows)


def write_report(name: str, shape: Shape, found: Flops, out: Path) -> list[Path]:
    """Write the table and the picture to the folder `out`; returns the files. Raises `SettingsError`."""
    told = {
        "model": name,
        "shape": asdict(shape),
        "flops": [
            {"workflow": workflow, "tokens": length, "flops": flops}
            for workflow, by_length in found.items()
            for length, flops in by_length.items()
        ],
    }

    def page(pictures: Pictures | None) -> str:
        parts = [
            f"# FLOPs by length: {cell(name)}\n",
            f"{_TOLD}\n",
            flops_table(found),
            picture(_PICTURE, pictures),
        ]
        return as_page(parts, pictures)

    return write_folder(out, as_text(told), {_PICTURE: partial(_drawn, name, found)}, page)


def _drawn(name: str, found: Flops) -> Figure:
    figure, (panel,) = drawing.panels(1, 1, 8, 5)
    for number, (workflow, by_length) in enumerate(found.items()):
        places, values = list(by_length), list(by_length.values())
        panel.plot(places, values, label=workflow, **drawing.style(number))
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    lengths = next(iter(found.values()))
    panel.set_xticks(list(lengths), [str(Size("tokens", it)) for it in lengths])
    panel.set_xlabel("length of the document, tokens")
    panel.set_ylabel("FLOPs")
    panel.set_title(f"FLOPs by length of the document, {drawing.plain(name)}", loc="left")
    drawing.legend(figure, panel)
    return figure


def _exponent(by_length: Mapping[int, int]) -> str:
    exponent = growth(by_length.items())
    return "–" if exponent is None else f"{exponent:.2f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
