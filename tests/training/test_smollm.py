"""A real language model: SmolLM2-135M with a LoRA, trained for two steps on a CPU."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from memagent.settings import ReadSettings  # noqa: E402
from memagent.training.run import CHECKPOINTS  # noqa: E402
from memagent.training.settings import (  # noqa: E402
    DataSettings,
    LossSettings,
    OptimizerSettings,
    PolicySettings,
    RolloutSettings,
    TrainingSettings,
)
from smollm2 import MODEL, needs_smollm2  # noqa: E402
from training.runs import lines, train, weights  # noqa: E402

pytestmark = needs_smollm2

DOCUMENT = "The goose was bought at Covent Garden by a man with a billycock hat. " * 10
PROMPTS = """
update = "{chunk}\\n\\n{problem}\\nNotes: {memory}\\nNew notes:"
answer = "Notes: {memory}\\n\\n{problem}"
"""
REWARD = '''
def length(example, trajectory):
    """In letters: answers that are sampled differ in it."""
    return min(len(trajectory.answer), 100) / 100
'''


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> TrainingSettings:
    folder = tmp_path_factory.mktemp("smollm")
    rows = [
        {"id": f"e{n}", "task": "mine", "problem": "Where was it bought?", "document": DOCUMENT[: 560 + n],
         "answers": ["Covent Garden"]} for n in range(4)
    ]  # fmt: skip
    (folder / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARD)
    (folder / "prompts.toml").write_text(PROMPTS)
    return TrainingSettings(
        steps=2,
        checkpoint_every=1,
        policy=PolicySettings(model=str(MODEL), lora_rank=4, lora_alpha=8, dtype="float32"),
        read=ReadSettings(
            workflow="overwrite",
            templates=str(folder / "prompts.toml"),
            chunk_tokens=100,
            memory_tokens=24,
            answer_tokens=16,
        ),
        data=DataSettings(
            examples=(str(folder / "examples.jsonl"),), reward=f"{folder / 'rewards.py'}:length"
        ),
        rollout=RolloutSettings(groups=2, attempts=2, refills=0),
        loss=LossSettings(kl_weight=0.01),
        optimizer=OptimizerSettings(learning_rate=1e-3, warmup_steps=0),
    )


@pytest.fixture(scope="module")
def whole(wanted: TrainingSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    train(wanted, run)
    return run


def test_two_steps_are_sane(whole: Path) -> None:
    first, second = lines(whole, "training")
    for row in (first, second):
        assert row["conversations"] == 2 * 2 * 3, "two chunks and an answer"
        assert row["tokens"] == row["completion_tokens"] <= 4 * (24 + 24 + 16)
        assert 1 < row["memory_tokens"] <= 24 and 0 < row["answer_tokens"] <= 16
        assert row["longest_reply_tokens"] <= 24
        assert 0 < row["reward"] < 1 and abs(row["loss"]) < 0.1 and 0 < row["gradient_norm"] < 10
        assert 0 < row["entropy"] < math.log(49_152) / 2, "it is a language model"
        assert row["mismatch"] < 1e-4, "the learner computes what the sampler did"
        assert row["clip_low"] == row["clip_high"] == 0
    assert abs(first["kl"]) < 1e-6, "the policy is the reference, up to rounding"
    assert second["kl"] > 10 * abs(first["kl"]) and second["kl"] < 1


def test_it_is_a_lora_that_learns(whole: Path) -> None:
    trained = weights(whole)
    assert len(trained) == 30 * 7 * 2, "layers, matrices, two for each"
    assert sum(bool(value.abs().sum()) for name, value in trained.items() if "lora_B" in name) == 30 * 7
    assert (whole / CHECKPOINTS / "step-000002.pt").stat().st_size < 30e6, "without the base"


def test_a_run_that_was_killed_after_a_step_ends_the_same(
    wanted: TrainingSettings, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "killed"
    shutil.copytree(whole, run)
    (run / CHECKPOINTS / "step-000002.pt").unlink()
    watch = train(wanted, run, resume=True)
    assert [(stage, step) for stage, step, _ in watch.rows] == [("training", 2)]
    assert lines(run) == lines(whole)
    ours, theirs = weights(run), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
