"""What a training run shows on a terminal and elsewhere."""

from __future__ import annotations

import io

import rich

from memagent.cli.train import TrainingWatch

STEP = {
    "reward": 0.4311, "reward_std": 0.2, "groups_dropped": 3.0, "failed": 1.0, "cut": 0.0625,
    "unchanged": 0.25, "loss": -0.01234, "kl": 0.00071, "entropy": 1.25, "gradient_norm": 0.5,
    "clip_low": 0.001, "clip_high": 0.002, "memory_tokens": 312.4, "answer_tokens": 9.25,
    "rollout_tokens_per_second": 12345.6, "update_tokens_per_second": 54321.0, "learning_rate": 1e-6,
    "memory_mib": 61234.0, "rollout_seconds": 61.5, "update_seconds": 30.0,
}  # fmt: skip
SCORE = {"score": 43.21, "half_width": 5.14, "failed": 2.0, "count": 64.0}


def plain() -> io.StringIO:
    """What goes to stderr from now on."""
    out = io.StringIO()
    rich.reconfigure(file=out, width=80)
    return out


def test_a_plain_line_a_step_where_there_is_no_terminal() -> None:
    out = plain()
    with TrainingWatch() as watch:
        watch.begin(1, 40)
        watch.row("training", 1, STEP)
        watch.row("evaluation", 1, SCORE)
    assert out.getvalue().splitlines() == [
        "training, step 1 of 40: reward 0.431, loss -0.0123, KL 0.00071, entropy 1.25, gradient norm 0.5, "
        "memory 312 tokens, updates cut 6.2%, unchanged 25.0%, rollout time 61.5 s, update time 30.0 s",
        "held-out score after step 1: 43.2 ± 5.1 (64 examples, 2 failed)",
    ]


def test_stages_follow_each_other_and_a_resumed_run_says_where_it_is() -> None:
    out = plain()
    with TrainingWatch() as watch:
        watch.begin(1, 2, "warm_start")
        watch.row("warm_start", 1, {"loss": 2.5, "tokens": 16000.0, "update_seconds": 3.25})
        watch.begin(11, 40)
        watch.row("training", 11, STEP)
    first, second, third = out.getvalue().splitlines()
    assert first == "warm start, step 1 of 2: loss 2.5, trained on 16,000 tokens, update time 3.2 s"
    assert second == "training resumes at step 11 of 40" and third.startswith("training, step 11 of 40: ")


def test_quiet_says_nothing() -> None:
    out = plain()
    with TrainingWatch(quiet=True) as watch:
        watch.begin(5, 40)
        watch.row("training", 5, STEP)
    assert out.getvalue() == ""


def test_a_terminal_shows_the_time_left_below_the_lines() -> None:
    out = io.StringIO()
    rich.reconfigure(file=out, width=80, force_terminal=True, color_system=None, _environ={})
    with TrainingWatch() as watch:
        watch.begin(1, 2)
        watch.row("training", 1, STEP)
        watch.row("training", 2, STEP)
    assert "training, step 2 of 2: reward 0.431" in out.getvalue()
    assert "passed" in (last := out.getvalue().rpartition("training, step 2")[2]) and "0:00:00 left" in last
