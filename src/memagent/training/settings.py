"""A training run's settings: one TOML file with a table for each part; unknown names are errors.

Paths in the file are relative to it. Defaults are the paper's where it gives one (arXiv 2507.02259,
section 4.1 and appendix); clipping and dropped groups are DAPO's (arXiv 2503.14476). docs/training.md says
what each setting means.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from memagent.errors import SettingsError, reason
from memagent.settings import Count, Dtype, EngineSettings, Names, Positive, ReadSettings, Seed, read_toml
from memagent.storage import file_digest
from memagent.strict import StrictModel, build

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Layout = Literal["shared", "packed", "padded"]
Credit = Literal["trajectory", "updates", "verdicts", "answer", "shuffled"]
Betas = Annotated[tuple[Beta, Beta], Field(strict=False)]


_TRAINED_ON = {
    "policy": ("model", "adapter", "prepare"), "read": ("templates",), "data": ("examples", "reward"),
    "evaluation": ("examples",), "warm_start": ("trajectories", "examples"),
}  # fmt: skip
"""The settings that can name files, by their tables."""


class PolicySettings(StrictModel):
    """The model to train: all its weights, or a LoRA of `lora_rank`; by default, the default model.

    With `only_verdicts`, the LoRA is used for verdicts alone; all other replies are the model's own.
    """

    model: str | None = None
    random_weights: bool = False
    prepare: str | None = None
    adapter: str | None = None
    lora_rank: Count = 0
    lora_alpha: Positive = 32
    lora_targets: str | Names = "all-linear"
    only_verdicts: bool = False
    dtype: Dtype = "auto"
    gradient_checkpointing: bool = False

    @model_validator(mode="after")
    def _check(self) -> PolicySettings:
        if self.adapter and self.lora_rank:
            raise ValueError("adapter brings a LoRA of its own rank: leave lora_rank out")
        if self.only_verdicts and not (self.adapter or self.lora_rank):
            raise ValueError("only_verdicts is for a LoRA: set lora_rank or adapter")
        if self.prepare and not self.random_weights:
            raise ValueError("prepare is for random weights: set random_weights, or leave prepare out")
        return self


class DataSettings(StrictModel):
    """The training data: files, and functions (`module:function` or `file.py:function`) by number."""

    examples: Names = ()
    scorer: str | None = None
    reward: str | None = None


class RolloutSettings(StrictModel):
    """How attempts are made: `groups` examples per step, `attempts` at each (the paper's G).

    There is no `top_p`: log-probabilities are recorded before it would cut.
    """

    groups: Positive = 16
    attempts: Annotated[int, Field(ge=2)] = 16
    temperature: Rate = 1.0
    refills: Count = 3
    rows: Positive = 256
    server: str | None = None
    served_model: str | None = None
    push: Literal["vllm-lora", "sglang-weights", "none"] = "vllm-lora"
    traces: str | None = None

    @property
    def drops_equal(self) -> bool:
        """Whether groups whose rewards are all equal are dropped."""
        return self.refills > 0


class LossSettings(StrictModel):
    """The objective. `clip_low` and `clip_high` bound the ratio, `dual_clip` the loss where A < 0.

    `kl_weight` is beta. `credit` says which conversations of trajectory i get its advantage A_i, the others
    being left out of the loss: all ("trajectory"); its verdicts, where the policy gives nothing else; for
    comparison, its updates or its answer alone. Or all of them get A_p(i), where p is a random permutation of
    the group ("shuffled": a control, in which the advantages are as large, and say nothing about the
    trajectory).
    """

    clip_low: Annotated[float, Field(ge=0, lt=1)] = 0.2
    clip_high: Weight = 0.28
    dual_clip: Annotated[float, Field(gt=1)] = 3.0
    kl_weight: Weight = 1e-3
    divide_by_std: bool = False
    overlong_tokens: Count = 0
    credit: Credit = "trajectory"


class ScheduleSettings(StrictModel):
    """AdamW's betas and learning rate.

    The rate rises over `warmup_steps`, and falls to zero over the last `decay_steps`, both linearly.
    """

    learning_rate: Rate
    warmup_steps: Count
    decay_steps: Count = 0
    betas: Betas = (0.9, 0.999)


class OptimizerSettings(ScheduleSettings):
    """AdamW: the steps of its schedule are batches of rollouts, each with `updates` optimizer steps.

    `batch_tokens` bounds a micro-batch, whose sequences lie in a `layout` of `optimization.sequences`.
    """

    learning_rate: Rate = 1e-6
    warmup_steps: Count = 20
    weight_decay: Weight = 0.01
    max_gradient_norm: Rate = 1.0
    updates: Positive = 1
    batch_tokens: Positive = 16384
    layout: Layout = "shared"


class WarmStartSettings(ScheduleSettings):
    """Supervised fine-tuning (SFT) before reinforcement, on `count` trajectories.

    `trajectories` is a file of `memagent train collect`, "oracle", a function from an example to a
    `Trajectory`, or a class in the oracle's place, a `MakeExpert`. What follows a mistake of the oracle is
    trained on, so that the model learns to drop what it should not have noted; the mistake is not. Each step
    draws `sequences`, up to `neighbours` at a time with a common prompt prefix.
    """

    steps: Count = 0
    sequences: Positive = 8
    learning_rate: Rate = 2e-5
    warmup_steps: Count = 10
    trajectories: str = "oracle"
    examples: Names = ()
    count: Positive = 256
    mistakes: Share = 0.0
    chunk_tokens: Annotated[tuple[Positive, ...], Field(strict=False)] = ()
    neighbours: Positive = 1


class EvaluationSettings(StrictModel):
    """Held-out evaluation every `every` steps (0: never) on `count` of `examples`, read greedily."""

    every: Count = 0
    examples: Names = ()
    count: Positive = 64
    before: bool = True

    @model_validator(mode="after")
    def _has_examples(self) -> EvaluationSettings:
        if self.every and not self.examples:
            raise ValueError("every needs examples: set evaluation.examples")
        return self


class TrainingSettings(StrictModel):
    """All settings of a run.

    Of `engine`, training uses the window and, with `rollout.server`, the key, the timeout and the retries;
    `memagent train collect` uses all of it.
    """

    steps: Count = 100
    seed: Seed = 0
    checkpoint_every: Positive = 10
    keep: Positive = 2
    policy: PolicySettings = PolicySettings()
    engine: EngineSettings = EngineSettings()
    read: ReadSettings = ReadSettings()
    data: DataSettings = DataSettings()
    rollout: RolloutSettings = RolloutSettings()
    loss: LossSettings = LossSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    warm_start: WarmStartSettings = WarmStartSettings()
    evaluation: EvaluationSettings = EvaluationSettings()

    @model_validator(mode="after")
    def _trains_what_was_sampled(self) -> TrainingSettings:
        if self.policy.only_verdicts:
            if (self.steps and self.loss.credit != "verdicts") or self.rollout.server:
                raise ValueError(
                    'policy.only_verdicts needs loss.credit = "verdicts", and cannot be with rollout.server: '
                    "answers are not the trained policy's"
                )
            if self.warm_start.steps and self.warm_start.trajectories == "oracle":
                raise ValueError(
                    "policy.only_verdicts: the oracle gives none, so set warm_start.trajectories to a file"
                )
        return self

    def digest_files(self) -> dict[str, str]:
        """The SHA-256 of each file that training reads, and of the code that it runs, by path.

        Raises `SettingsError` for a file that cannot be read.
        """
        values = [getattr(getattr(self, part), name) for part, names in _TRAINED_ON.items() for name in names]
        texts = [text for value in values if value for text in ([value] if isinstance(value, str) else value)]
        try:
            return {str(file): file_digest(file).hex() for file in map(_file_of, texts) if file.is_file()}
        except OSError as error:
            raise SettingsError(f"{error.filename} cannot be read: {reason(error)}") from error

    def record(self) -> dict[str, Any]:
        """The settings as recorded with a run, without the endpoint's key."""
        return self.model_dump(mode="json", exclude={"engine": {"api_key"}})


def load_training(path: str | Path, overrides: Mapping[str, Any] | None = None) -> TrainingSettings:
    """The settings of a TOML file, overridden by the values in `overrides`, which is nested like the file.

    Raises `SettingsError` naming the file and everything that is wrong.
    """
    path = Path(path)
    where = f"{path}, as changed" if overrides else str(path)
    settings = build(TrainingSettings, _merge(read_toml(path), overrides or {}), where)
    return _locate(settings, path.absolute().parent)  # the same run, wherever it is resumed from


def _locate(settings: TrainingSettings, folder: Path) -> TrainingSettings:
    """The settings with file names resolved against `folder`; names of no existing file stay unchanged."""

    def find(name: str) -> str:
        return str(folder / name) if (folder / _file_of(name)).exists() else name

    parts: dict[str, StrictModel] = {}
    for part, names in (_TRAINED_ON | {"engine": ("model", "adapter", "tokenizer")}).items():
        own = getattr(settings, part)
        given = {name: value for name in names if (value := getattr(own, name))}
        parts[part] = own.replace(
            **{name: find(v) if isinstance(v, str) else tuple(map(find, v)) for name, v in given.items()}
        )
    return settings.replace(**parts)


def _file_of(name: str) -> Path:
    """The file that a setting names; for a function, `file.py:function`, the file of its code."""
    file, colon, _ = name.partition(".py:")
    return Path(file + colon.rstrip(":"))


def _merge(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(table)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
