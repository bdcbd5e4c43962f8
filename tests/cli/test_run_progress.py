"""What a terminal, or a log, shows of a run while it goes on."""

from __future__ import annotations

from io import StringIO

import rich

from memagent.cli.progress import RunDisplay, describe_left
from memagent.runs.batch import RunProgress
from memagent.types import Spent

PAID = Spent(calls=2, cost=0.5)


def test_a_terminal_has_a_bar_for_each_part_in_progress() -> None:
    output = StringIO()
    rich.reconfigure(file=output, force_terminal=True, width=120)
    with RunDisplay(False, "attempts") as display:
        display.begin({"vt, full": 2, "vt, gated": 2}, {"vt, full": 1})
        display.add("vt, full", "50.0", PAID, failed=True)
        display.add("vt, gated", "50.0", PAID)
    text = output.getvalue()
    assert "vt, full: 50.0, 1 failed, 2 attempts" in text
    assert "vt, gated: 50.0" in text and "1/2" in text and "3/4" in text
    assert "0 s and cost 0.5 left" in text


def test_elsewhere_there_is_a_line_for_each_percent() -> None:
    output = StringIO()
    rich.reconfigure(file=output, width=120)
    display = RunDisplay(False, "files")
    with display:
        display.begin({"": 200}, {})
        for number in range(200):
            display.add("", f"{number}.txt, answered", PAID)
    lines = output.getvalue().splitlines()
    assert len(lines) == 100 and lines[0] == "2 of 200, 0 s and cost 99 left: 1.txt, answered"
    assert lines[-1] == "200 of 200: 199.txt, answered"


def test_what_is_left_follows_from_what_this_run_has_read() -> None:
    progress = RunProgress(total=8, done=4, kept=4)
    assert progress.seconds_left is None and describe_left(progress) == ""
    progress.add(Spent(calls=1), kept=True)
    assert progress.seconds_left is None
    progress.add(PAID, failed=True)
    assert progress.cost_left == 1.0 and (progress.done, progress.kept, progress.failed) == (6, 5, 1)
    assert describe_left(progress).endswith(" and cost 1 left")
