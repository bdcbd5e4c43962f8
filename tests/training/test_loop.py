"""Training runs of presets/tiny.toml: what they write, and that killing one changes nothing."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from memagent.errors import EngineError, SettingsError, TrainingError  # noqa: E402
from memagent.tasks import write_examples  # noqa: E402
from memagent.training import loop  # noqa: E402
from memagent.training.export import load_trained_policy  # noqa: E402
from memagent.training.optimization.policy import load_policy  # noqa: E402
from memagent.training.run import (  # noqa: E402
    CHECKPOINTS,
    load_checkpoint,
    newest_checkpoint,
)
from memagent.types import (  # noqa: E402
    Completion,
    Example,
    Message,
    Sampling,
)
from training.runs import PRESET, Told, lines, settings, start, train, weights  # noqa: E402
from waiting import wait_for  # noqa: E402

PATIENCE_SECONDS = 900.0  # beside other work, a process may take more than a minute to begin
IMITATED = 64  # examples, at which reinforcement does not begin again
TOLD = {
    "reward", "reward_std", "groups", "groups_dropped", "equal_groups", "reward/TASK", "equal_groups/TASK",
    "rounds", "failed", "failed_cut", "conversations",
    "memory_tokens",
    "answer_tokens", "longest_reply_tokens", "cut", "unchanged", "completion_tokens", "loss", "entropy",
    "clip_low", "clip_high", "clip_dual", "mismatch", "tokens", "sequence_tokens", "gradient_norm",
    "learning_rate",
    "update_seconds", "update_tokens_per_second", "rollout_seconds", "rollout_tokens_per_second",
    "memory_mib", "examples_skipped", "updates_skipped",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One place for all runs, so that they have the same settings."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """A run that nothing disturbed."""
    train(settings(folder), folder / "whole")
    return folder / "whole"


def same(run: Path, whole: Path) -> None:
    """Assert that two runs have the same metrics and the same weights."""
    assert lines(run) == lines(whole)
    ours, theirs = weights(run), weights(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_every_step_has_a_line_with_all_that_is_measured(whole: Path) -> None:
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text("utf-8").splitlines()]
    stages = [(row["stage"], row["step"]) for row in rows]
    assert stages == [
        *(("warm_start", step) for step in (1, 2, 3, 4)),
        ("evaluation", 0), ("training", 1), ("training", 2), ("evaluation", 2),
        ("training", 3), ("evaluation", 3),
    ]  # fmt: skip
    for row in rows:
        assert all(
            value is not None and math.isfinite(value)
            for name, value in row.items()
            if name not in ("stage", "crc32")
        )
        if row["stage"] == "training":
            assert TOLD | {"stage", "step", "crc32"} == names_of(row)
            assert (
                row["groups"] == 4
                and row["groups_dropped"] == 0
                and row["conversations"] == 4 * 4 * 4
                and row["rounds"] == 1
            )
            assert row["tokens"] == row["completion_tokens"] == 64 and row["sequence_tokens"] > 64
            assert 0 < row["reward"] < 1 and row["gradient_norm"] > 0 and row["mismatch"] < 1e-5
            assert abs(row["loss"]) < 1 and 0 < row["entropy"] < math.log(40)
        if row["stage"] == "evaluation":
            assert row["count"] == 8
    assert rows[3]["loss"] < rows[0]["loss"], "the warm start learns"
    known = {row["stage"]: names_of(row) - {"stage", "step", "crc32"} for row in rows}
    assert metrics_in_docs() == [
        known["training"] | {"kl"},
        known["warm_start"],
        known["evaluation"] | {"haystack"},
    ]


def names_of(row: dict[str, Any]) -> set[str]:
    """The names of its metrics, with TASK for that of any task."""
    return {re.sub("/.*", "/TASK", name) for name in row}


def metrics_in_docs() -> list[set[str]]:
    """The metrics that docs/training.md explains, by its tables."""
    text = (PRESET.parents[1] / "docs" / "training.md").read_text("utf-8")
    tables = text.partition("## Watching a run")[2].partition("\n## ")[0].split("| metric | meaning |")[1:]
    cells = ("".join(re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)) for table in tables)
    return [set(re.findall(r"`([\w/]+)`", cell)) for cell in cells]


def test_the_rows_of_each_evaluation_stay_with_the_run(whole: Path) -> None:
    folders = sorted((whole / "evaluation").iterdir())
    assert [path.name for path in folders] == ["step-000000", "step-000002", "step-000003"]
    for path in folders:
        rows = [json.loads(line) for line in (path / "rows.jsonl").read_text("utf-8").splitlines()]
        assert len({row["example_id"] for row in rows}) == 8
        assert all("held out" in row["example_id"] for row in rows)


def test_a_run_that_begins_anew_has_held_out_examples_of_its_own(folder: Path) -> None:
    run = folder / "anew"
    run.mkdir()
    write_examples(run / "held_out.jsonl", [Example("of other settings", "mine", "?", "a", ("a",), 1)])
    train(settings(folder, "steps=1"), run, resume=True)
    assert "of other settings" not in (run / "held_out.jsonl").read_text("utf-8")


def test_a_seed_decides_a_run(folder: Path, whole: Path) -> None:
    train(settings(folder), folder / "again")
    same(folder / "again", whole)
    train(settings(folder, "seed=1"), folder / "other")
    assert lines(folder / "other") != lines(whole)


def test_an_interrupt_takes_effect_between_the_steps_of_a_warm_start(folder: Path) -> None:
    class Interrupting(Told):
        def row(self, stage: str, step: int, values: Mapping[str, float]) -> None:
            task = asyncio.current_task()
            assert task
            task.cancel()

    run = loop.train(settings(folder), folder / "interrupted", Interrupting())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run)
    assert [row["step"] for row in lines(folder / "interrupted")] == [1]


@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_a_killed_run_resumes_as_if_it_had_never_stopped(folder: Path, whole: Path) -> None:
    run, chance, kills = folder / "killed", random.Random(0), 0
    metrics = run / "metrics.jsonl"
    for count in (0, 2, 5, 7):  # before the first line, in the warm start, in its first steps, later
        process = start(folder, run, "--resume")
        wait_for(
            lambda count=count: (metrics.read_bytes() if metrics.is_file() else b"").count(b"\n") >= count,
            process,
            PATIENCE_SECONDS,
        )
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        process.communicate()
        kills += process.returncode < 0
    assert kills >= 3
    process = start(folder, run, "--resume")
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0 and out == f"{run}\n", err
    same(run, whole)


@pytest.mark.parametrize("step", range(1, 7))
def test_a_run_resumes_from_each_of_its_checkpoints(step: int, folder: Path) -> None:
    """As after a kill between a checkpoint and the next: the lines behind it are written again."""
    training_settings = settings(folder, "keep=99")
    whole = folder / "kept"
    if not whole.exists():
        train(training_settings, whole)
    run = folder / f"from-{step}"
    shutil.copytree(whole, run)
    for path in (run / CHECKPOINTS).glob("step-*.pt"):
        if int(path.stem.removeprefix("step-")) > step:
            path.unlink()
    train(training_settings, run, resume=True)
    same(run, whole)


def test_the_optimizer_of_the_warm_start_ends_with_it(folder: Path) -> None:
    """The checkpoint after the last step of imitation is what reinforcement begins with."""
    train(settings(folder), folder / "warm", sft=True)
    path = newest_checkpoint(folder / "warm")
    assert path is not None and path.name == "step-000004.pt"
    state = load_checkpoint(path)
    assert state["position"] == {"warm_steps": 4, "step": 0, "example": IMITATED}
    assert state["optimizer"] is None


def test_no_checkpoint_has_the_whole_warm_start_and_its_optimizer(folder: Path) -> None:
    """A kill may fall between any two checkpoints, so each must be one to go on from."""
    run = folder / "watched"
    train(settings(folder, "warm_start.steps=2", "keep=99"), run, sft=True)
    states = [load_checkpoint(path) for path in sorted((run / CHECKPOINTS).glob("step-*.pt"))]
    steps = [(state["position"]["warm_steps"], state["optimizer"] is not None) for state in states]
    assert steps == [(1, True), (2, False)]


def test_each_stage_has_the_betas_that_it_was_given(folder: Path) -> None:
    wanted = {"warm_start": [0.6, 0.7], "optimizer": [0.7, 0.8]}
    changes = [f"{stage}.betas={betas}" for stage, betas in wanted.items()]
    run = folder / "betas"
    train(settings(folder, "warm_start.steps=2", "steps=1", "keep=99", *changes), run)
    states = [load_checkpoint(path) for path in sorted((run / CHECKPOINTS).glob("step-*.pt"))]
    pairs = [
        state["optimizer"]["optimizer"]["param_groups"][0]["betas"] for state in states if state["optimizer"]
    ]
    assert [list(betas) for betas in pairs] == list(wanted.values())


def test_the_warm_start_may_end_where_a_run_was_stopped(folder: Path) -> None:
    """Reinforcement begins as ever: with an optimizer of its own, after the examples that were imitated."""
    changes = ("warm_start.betas=[0.6, 0.7]", "steps=1", "evaluation.every=0", "keep=99")
    run, whole = folder / "ended", folder / "meant"
    train(settings(folder, *changes, "warm_start.steps=1"), whole)
    train(settings(folder, *changes, "warm_start.steps=2"), run, sft=True)
    (run / CHECKPOINTS / "step-000002.pt").unlink()
    train(settings(folder, *changes, "warm_start.steps=1"), run, resume=True)
    same(run, whole)


def test_imitation_may_have_examples_of_its_own(folder: Path, tmp_path: Path) -> None:
    """Reinforcement then begins with its first example."""
    symbols = PRESET.parent / "tiny" / "symbols.py"
    run = tmp_path / "run"
    train(settings(folder, f'warm_start.examples=["{symbols}:held_out"]'), run, sft=True)
    path = newest_checkpoint(run)
    assert path is not None and load_checkpoint(path)["position"]["example"] == 0
    other = tmp_path / "other"
    train(settings(folder), other, sft=True)
    assert lines(run) != lines(other)


def test_a_warm_start_alone_is_the_beginning_of_a_run(folder: Path, whole: Path) -> None:
    run = folder / "both"
    train(settings(folder), run, sft=True)
    assert {row["stage"] for row in lines(run)} == {"warm_start"}
    train(settings(folder), run, resume=True)
    same(run, whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("loss.clip_high=0.3", "loss.clip_high was 0.28, now it is 0.3"),
        ("rollout.attempts=5", "rollout.attempts was 4, now it is 5"),
        ("seed=1", "seed was 0, now it is 1"),
        ("policy.lora_rank=2", "policy.lora_rank was 0, now it is 2"),
        ("read.chunk_tokens=9", "read.chunk_tokens was 7, now it is 9"),
    ],
)
def test_other_settings_are_refused_by_name(folder: Path, whole: Path, change: str, message: str) -> None:
    before = (whole / "metrics.jsonl").read_bytes()
    with pytest.raises(SettingsError, match=re.escape(message)):
        train(settings(folder, change), whole, resume=True)
    assert (whole / "metrics.jsonl").read_bytes() == before


def test_a_run_whose_memory_ran_out_resumes_with_less(folder: Path) -> None:
    run = folder / "memory"
    (folder / "memory.py").write_text(
        "import torch\n"
        "def fail():\n"
        "    raise torch.OutOfMemoryError('tried to allocate 2 GiB')\n"
        "def scarce(model):\n"
        "    model.lm_head.register_forward_hook(lambda module, arguments, output:\n"
        "        fail() if torch.is_grad_enabled() and output.shape[:-1].numel() > 30 else None)\n"
        "def crowded(model):\n"
        "    model.lm_head.register_forward_hook(lambda module, arguments, output:\n"
        "        fail() if not torch.is_grad_enabled() and len(output) > 2 else None)\n"
    )
    scarce = ("evaluation.every=0", f"policy.prepare={folder / 'memory.py'}:scarce", "warm_start.sequences=4")
    with pytest.raises(TrainingError, match=r"memory ran out \(tried.*2 GiB\): lower optimizer.batch_tokens"):
        train(settings(folder, *scarce), run)
    assert (len(lines(run, "warm_start")), lines(run, "training")) == (4, [])
    less = ("optimizer.batch_tokens=32", "policy.gradient_checkpointing=true", "rollout.rows=2")
    train(settings(folder, *scarce, *less), run, resume=True)
    assert len(lines(run, "training")) == 3
    crowded = ("evaluation.every=0", "warm_start.steps=0", f"policy.prepare={folder / 'memory.py'}:crowded")
    with pytest.raises(EngineError, match=r"tried to allocate 2 GiB\): lower .*rollout\.rows in training"):
        train(settings(folder, *crowded), folder / "crowded")


def test_how_long_to_train_may_change(folder: Path) -> None:
    run = folder / "longer"
    train(settings(folder, "evaluation.every=0"), run)
    train(settings(folder, "evaluation.every=0", "steps=4", "checkpoint_every=2", "keep=1"), run, resume=True)
    train(settings(folder, "evaluation.every=0", "steps=4"), folder / "long")
    same(run, folder / "long")
    assert [path.name for path in (run / CHECKPOINTS).glob("step-*")] == ["step-000008.pt"]


def test_a_run_is_not_resumed_with_a_server_that_it_did_not_have(folder: Path, whole: Path) -> None:
    with pytest.raises(SettingsError, match="served was false, now it is true"):
        train(settings(folder, "rollout.server=http://127.0.0.1:9/v1"), whole, resume=True)


def test_a_finished_run_has_nothing_to_do(folder: Path, whole: Path) -> None:
    run = folder / "finished"
    shutil.copytree(whole, run)
    before = (run / "metrics.jsonl").read_bytes()
    assert train(settings(folder), run, resume=True).rows == []
    assert (run / "metrics.jsonl").read_bytes() == before
    same(run, whole)


def test_a_folder_with_a_run_is_not_written_over(folder: Path, whole: Path) -> None:
    before = (whole / "metrics.jsonl").read_bytes()
    with pytest.raises(SettingsError, match="holds a training run"):
        train(settings(folder), whole)
    assert (whole / "metrics.jsonl").read_bytes() == before


def test_groups_of_equal_rewards_are_dropped_and_others_drawn(folder: Path) -> None:
    run = folder / "refilled"
    train(
        settings(folder, "rollout.refills=20", "rollout.attempts=2", "evaluation.every=0", reward="early"),
        run,
    )
    rows = lines(run, "training")
    for row in rows:
        assert row["groups_dropped"] > 0 and row["rounds"] > 1
        assert row["groups"] - row["groups_dropped"] == 4, "so many as were asked for"
        assert row["tokens"] == 4 * 2 * 4 < row["completion_tokens"], "attempts, conversations of one token"
    state = load_checkpoint(newest_checkpoint(run) or run)
    assert state["position"]["example"] == IMITATED + sum(row["groups"] for row in rows), "no example twice"


def test_refills_end_and_what_differs_is_trained_on(folder: Path) -> None:
    run = folder / "refilled-once"
    train(
        settings(folder, "rollout.refills=1", "rollout.attempts=2", "evaluation.every=0", reward="early"), run
    )
    for row in lines(run, "training"):
        assert row["rounds"] <= 2
        assert row["tokens"] == (row["groups"] - row["groups_dropped"]) * 2 * 4


def test_a_step_without_a_group_to_learn_from_leaves_the_policy(folder: Path) -> None:
    run = folder / "nothing"
    changes = ("rollout.refills=1", "rollout.attempts=2", "evaluation.every=0", "keep=99")
    train(settings(folder, *changes, reward="equal"), run)
    for row in lines(run, "training"):
        assert (row["groups"], row["groups_dropped"], row["tokens"]) == (8, 8, 0)
    first, last = (load_checkpoint(run / CHECKPOINTS / f"step-00000{n}.pt")["weights"] for n in (4, 7))
    assert all(torch.equal(first[name], last[name]) for name in first)


@pytest.mark.parametrize(
    ("refills", "reward", "expected"), [(0, "equal", 1), (1, "equal", 1), (0, "letter", 0)]
)
def test_a_run_that_learns_nothing_says_so_once(
    refills: int, reward: str, expected: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = ("steps=7", f"rollout.refills={refills}", "evaluation.every=0", "warm_start.steps=0")
    train(settings(folder, *changes, reward=reward), folder / f"idle-{refills}-{reward}")
    records = [
        record for record in caplog.records if "in 5 steps in a row, all attempts" in record.getMessage()
    ]
    assert len(records) == expected


def test_without_refills_all_groups_are_kept(folder: Path) -> None:
    run = folder / "kept-equal"
    train(settings(folder, "rollout.attempts=2", "evaluation.every=0", reward="equal"), run)
    for row in lines(run, "training"):
        assert (row["groups"], row["groups_dropped"], row["equal_groups"]) == (4, 0, 1.0)
        assert (row["tokens"], row["rounds"]) == (4 * 2 * 4, 1)


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_the_optimizer_steps_are_as_many_as_were_asked_for(folder: Path, updates: int) -> None:
    run = folder / f"updates-{updates}"
    train(settings(folder, f"optimizer.updates={updates}", "evaluation.every=0", "warm_start.steps=0"), run)
    state = load_checkpoint(newest_checkpoint(run) or run)
    steps = {float(entry["step"]) for entry in state["optimizer"]["optimizer"]["state"].values()}
    assert steps == {3 * updates}
    tokens = [row["tokens"] for row in lines(run, "training")]
    assert len(tokens) == 3 and all(62 <= count <= 64 for count in tokens), (
        "each once; no answer from nothing"
    )


def test_credit_for_the_answer_alone_trains_on_answers(folder: Path) -> None:
    run = folder / "answers"
    train(settings(folder, "loss.credit=answer", "evaluation.every=0"), run)
    assert [row["tokens"] for row in lines(run, "training")] == [4 * 4] * 3


def test_the_reference_of_all_weights_survives_a_resume(folder: Path) -> None:
    changes = ("loss.kl_weight=0.1", "evaluation.every=0", "keep=99")
    whole, run = folder / "reference", folder / "reference-resumed"
    train(settings(folder, *changes), whole)
    kl = [row["kl"] for row in lines(whole, "training")]
    assert abs(kl[0]) < 1e-9 < 1e-6 < kl[1] < kl[2], "from the policy as the warm start left it"
    shutil.copytree(whole, run)
    (run / CHECKPOINTS / "step-000007.pt").unlink()
    train(settings(folder, *changes), run, resume=True)
    same(run, whole)


def test_the_reference_of_a_lora_is_the_lora_after_the_warm_start(folder: Path) -> None:
    pytest.importorskip("peft")
    run = folder / "lora"
    train(settings(folder, "loss.kl_weight=0.1", "policy.lora_rank=2", "evaluation.every=0"), run)
    kl = [row["kl"] for row in lines(run, "training")]
    assert abs(kl[0]) < 1e-9 < kl[1]
    reference = load_checkpoint(run / CHECKPOINTS / "reference.pt")
    assert reference.keys() == weights(run).keys()
    assert weights(run) and all("lora_" in name for name in weights(run))


def test_a_lora_for_verdicts_alone_judges_and_answers_nothing(folder: Path) -> None:
    pytest.importorskip("peft")
    changes = (
        "policy.lora_rank=2",
        "policy.only_verdicts=true",
        "loss.credit=verdicts",
        "warm_start.steps=0",
    )
    wanted = settings(folder, *changes)
    policy = load_policy(wanted.policy, 1.0, wanted.seed, device="cpu")
    engine = loop.local_engine(wanted, policy)
    samplings = [Sampling(1, verdict=True), Sampling(3)]

    async def complete() -> list[Completion]:
        return [await engine.complete((Message("user", "a b c"),), sampling) for sampling in samplings]

    before = asyncio.run(complete())
    with torch.no_grad():
        for value in policy.trained_parameters().values():
            value.add_(torch.randn_like(value))
    verdict, answer = asyncio.run(complete())
    assert engine.model.judges
    assert verdict.logprobs != before[0].logprobs
    assert answer == before[1]


def test_the_policy_of_a_run_is_that_of_its_newest_checkpoint(folder: Path, whole: Path) -> None:
    policy, read_trained, step = load_trained_policy(whole)
    assert (step, read_trained.read.chunk_tokens) == (3, settings(folder).read.chunk_tokens)
    expected = weights(whole)
    assert all(torch.equal(value, expected[name]) for name, value in policy.trained_parameters().items())
    with pytest.raises(SettingsError, match="has no checkpoint"):
        load_trained_policy(folder / "none")


@pytest.mark.parametrize(
    ("rate", "message", "skipped"),
    [("1e19", "in 5 optimizer steps", [0, 0, 1, 1, 1, 1]), ("1e15", "logits are not numbers", [0, 0])],
)
def test_a_run_with_broken_weights_resumes_from_before(
    rate: str, message: str, skipped: list[int], folder: Path
) -> None:
    run = folder / f"broken-at-{rate}"
    wanted = ("optimizer.warmup_steps=0", "evaluation.every=0", "warm_start.steps=0", "rollout.refills=0")
    train(settings(folder, *wanted, "steps=1"), run)
    with pytest.raises(TrainingError, match=f"{message}.*: lower .* remove the newest checkpoint first"):
        train(settings(folder, *wanted, "steps=20", f"optimizer.learning_rate={rate}"), run, resume=True)
    assert [row["updates_skipped"] for row in lines(run, "training")] == skipped
    newest = newest_checkpoint(run)
    assert newest and newest.name == "step-000002.pt", "of the step that broke them"
    newest.unlink()
    train(settings(folder, *wanted), run, resume=True)
    assert [row["updates_skipped"] for row in lines(run, "training")] == [0, 0, 0]


def test_a_resumed_run_may_have_another_learning_rate(folder: Path) -> None:
    run = folder / "slower"
    train(settings(folder, "evaluation.every=0", "optimizer.warmup_steps=0"), run)
    slower = ("evaluation.every=0", "optimizer.warmup_steps=0", "optimizer.learning_rate=1e-7", "steps=4")
    train(settings(folder, *slower), run, resume=True)
    assert [row["learning_rate"] for row in lines(run, "training")] == [5e-4] * 3 + [1e-7]


def test_an_edited_file_does_not_continue_the_run(folder: Path) -> None:
    run, templates = folder / "edited", folder / "own.toml"
    text = (PRESET.parent / "tiny" / "prompts.toml").read_text("utf-8")
    templates.write_text(text, "utf-8")
    own = (f"read.templates={templates}", "warm_start.steps=0", "evaluation.every=0")
    train(settings(folder, *own, "steps=1"), run)
    templates.write_text(text + "# edited", "utf-8")
    with pytest.raises(SettingsError, match=r"own\.toml has changed since .*edited was begun"):
        train(settings(folder, *own, "steps=2"), run, resume=True)
    templates.write_text(text, "utf-8")
    train(settings(folder, *own, "steps=2"), run, resume=True)
    assert len(lines(run, "training")) == 2


def test_a_row_that_is_not_an_example_ends_a_run_before_it_begins(folder: Path) -> None:
    rows, run = folder / "rows.jsonl", folder / "no-example"
    write_examples(rows, [Example(str(n), "symbols", "?", "abcdef", ("a",), 6) for n in range(99)])
    rows.write_text(rows.read_text("utf-8") + '{"problem": "?", "answers": ["a"]}\n', "utf-8")
    with pytest.raises(SettingsError, match=r"rows\.jsonl, row 100: document is None"):
        train(settings(folder, f"data.examples=['{rows}']", "warm_start.steps=0", "evaluation.every=0"), run)
    assert lines(run) == []


def test_a_problem_that_is_too_long_is_skipped_and_counted(folder: Path) -> None:
    own = folder / "own.py"
    own.write_text(
        "import dataclasses, sys\n"
        f"sys.path.insert(0, {str(PRESET.parent / 'tiny')!r})\n"
        "import symbols\n"
        "def example(index):\n"
        "    made = symbols.example(index)\n"
        "    return dataclasses.replace(made, problem='?' * (9 if index % 8 == 0 else 1))\n"
    )
    run = folder / "long-problems"
    data = (f"data.examples=['{own}:example']", "warm_start.steps=0", "evaluation.every=0", "steps=2")
    train(settings(folder, *data), run)
    assert [(row["groups"], row["examples_skipped"]) for row in lines(run, "training")] == [(3, 1), (4, 0)]
    all_long = f"data.examples=['{own}:long']"
    own.write_text(own.read_text() + "def long(index):\n    return example(8 * index)\n")
    with pytest.raises(TrainingError, match=r"none of the 4 examples .* raise read.problem_tokens"):
        train(settings(folder, *data, all_long), folder / "all-long")


@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_two_processes_have_the_metrics_of_one(folder: Path, whole: Path) -> None:
    pytest.importorskip("accelerate")
    run = folder / "two"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    process = start(folder, run, launcher=launcher)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err[-3000:]
    for ours, theirs in zip(lines(run), lines(whole), strict=True):
        for name, value in theirs.items():
            near = name in ("loss", "entropy", "mismatch", "gradient_norm", "kl")
            assert ours[name] == (pytest.approx(value, abs=1e-5) if near else value), (name, theirs["step"])
    assert Counter(out.split()) == Counter([str(run)]), "one of them speaks"
    ours_, theirs_ = weights(run), weights(whole)
    assert all(torch.allclose(ours_[name], theirs_[name], atol=1e-5) for name in theirs_)


def test_what_prepares_random_weights_is_needed_at_the_start_alone(folder: Path, tmp_path: Path) -> None:
    prepare, run = tmp_path / "start.py", tmp_path / "run"
    prepare.write_text("def silent(model):\n    model.lm_head.weight.mul_(0)\n")
    wanted = settings(folder, f"policy.prepare={prepare}:silent", "warm_start.steps=1", "steps=0")
    watch = train(wanted, run, sft=True)
    assert watch.rows[0][2]["loss"] == pytest.approx(
        math.log(38), abs=1e-3
    )  # no token is likelier than another
    prepare.unlink()
    policy, _, step = load_trained_policy(run)
    assert step == 0 and all(
        torch.equal(weight, weights(run)[name]) for name, weight in policy.weights().items()
    )


def test_what_prepares_the_weights_under_a_lora_is_needed_again(folder: Path, tmp_path: Path) -> None:
    """No checkpoint holds them."""
    prepare, run = tmp_path / "start.py", tmp_path / "run"
    prepare.write_text("def silent(model):\n    model.lm_head.weight.mul_(0)\n")
    wanted = settings(folder, f"policy.prepare={prepare}:silent", "policy.lora_rank=2", "steps=0")
    train(wanted, run, sft=True)
    policy, *_ = load_trained_policy(run)
    assert not policy.network.get_output_embeddings().weight.any()
