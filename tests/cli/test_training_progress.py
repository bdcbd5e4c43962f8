"""What a training run shows on a terminal and elsewhere."""

from __future__ import annotations

import io
import math

from rich.console import Console

from memagent.cli.training_progress import TrainingWatch, sparkline
from memagent.reports.measures import TRAINING

STEP = {
    "reward": 0.4311, "reward_std": 0.2, "groups_dropped": 3.0, "failed": 1.0, "cut": 0.0625,
    "unchanged": 0.25, "loss": -0.01234, "kl": 0.00071, "entropy": 1.25, "gradient_norm": 0.5,
    "clip_low": 0.001, "clip_high": 0.002, "memory_tokens": 312.4, "answer_tokens": 9.25,
    "rollout_tokens_per_second": 12345.6, "update_tokens_per_second": 54321.0, "learning_rate": 1e-6,
    "memory_mib": 61234.0, "rollout_seconds": 61.5, "update_seconds": 30.0,
}  # fmt: skip
SCORE = {"score": 43.21, "half_width": 5.14, "failed": 2.0, "count": 64.0}


def plain(width: int = 80) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width), out


def screen(*rewards: float, stage: str = "training", ascii_only: bool = False) -> str:
    """The last picture on a terminal of 80 columns."""
    out = io.TextIOWrapper(
        io.BytesIO(), encoding="ascii" if ascii_only else "utf-8", errors="backslashreplace", newline=""
    )
    console = Console(file=out, width=80, height=40, force_terminal=True, color_system=None, _environ={})
    with TrainingWatch(console) as watch:
        watch.begin(1, 40, stage)
        for step, reward in enumerate(rewards, 1):
            watch.row(stage, step, {**STEP, "reward": reward})
        watch.row("evaluation", len(rewards), SCORE)
    out.flush()
    out.seek(0)
    return out.read().rpartition(f"{stage.replace('_', ' ')}, step {len(rewards)} of 40")[2]


def test_a_plain_line_a_step_where_there_is_no_terminal() -> None:
    console, out = plain()
    with TrainingWatch(console) as watch:
        watch.begin(1, 40)
        watch.row("training", 1, STEP)
        watch.row("evaluation", 1, SCORE)
    assert out.getvalue().splitlines() == [
        "training, step 1 of 40: reward 0.431, loss -0.0123, KL 0.00071, entropy 1.25, memory 312 tokens, "
        "updates cut 6.25%, unchanged 25%, rollout time 61.5 s, update time 30 s",
        "held-out score after step 1: 43.2 ± 5.1 (64 examples, 2 failed)",
    ]


def test_stages_follow_each_other_and_a_resumed_run_says_where_it_is() -> None:
    console, out = plain()
    with TrainingWatch(console) as watch:
        watch.begin(1, 2, "warm_start")
        watch.row("warm_start", 1, {"loss": 2.5, "tokens": 16000.0, "update_seconds": 3.25})
        watch.begin(11, 40)
        watch.row("training", 11, STEP)
    first, second, third = out.getvalue().splitlines()
    assert first == "warm start, step 1 of 2: loss 2.5, trained on 16,000 tokens, update time 3.25 s"
    assert second == "training resumes at step 11 of 40" and third.startswith("training, step 11 of 40: ")


def test_quiet_says_nothing() -> None:
    console, out = plain()
    with TrainingWatch(console, quiet=True) as watch:
        watch.begin(5, 40)
        watch.row("training", 5, STEP)
    assert out.getvalue() == ""


def test_a_terminal_shows_the_last_step_whole() -> None:
    shot = screen(0.1, 0.2, 0.9)
    for text in (
        "reward              0.9  loss", "KL              0.00071", "memory              312 tokens",
        "rollout        12,346 tokens/s", "updates cut       6.25%", "peak memory         61,234 MiB",
        "reward ▁▂█ 0.1 to 0.9", "held-out score after step 3: 43.2 ± 5.1 (64 examples, 2 failed)", "left",
    ):  # fmt: skip
        assert text in shot
    assert max(map(len, shot.splitlines())) <= 80


def test_a_terminal_without_unicode_gets_other_marks() -> None:
    assert "reward _.# 0.1 to 0.9" in screen(0.1, 0.2, 0.9, ascii_only=True)


def test_a_sparkline_has_the_shape_of_its_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, 1]) == "▁▁" and sparkline([]) == ""
    assert sparkline([0, math.nan, 7]) == "▁ █" and sparkline([math.nan]) == " "
    assert sparkline([*range(96)], cells=3) == "▁▅█" and len(sparkline([*range(97)], cells=48)) <= 48


def test_values_have_the_digits_that_mean_something() -> None:
    told = {name: TRAINING[name].shown(value) for name, value in STEP.items()}
    assert told["learning_rate"] == "1e-06" and told["answer_tokens"] == "9.25 tokens"
    assert told["groups_dropped"] == "3" and told["cut"] == "6.25%"
    assert TRAINING["loss"].shown(math.nan) == "not a number"
