"""A training run's settings: one TOML file, one table for each part; an unknown key is an error.

Paths in the file are relative to it. The defaults are the paper's where it has a figure (arXiv 2507.02259,
section 4.1 and appendix).
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from memagent.errors import SettingsError
from memagent.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The model that is trained.

    `model` is a Hugging Face folder or id, or a .gguf file; nothing for the embedded model's weights.
    With `random_weights` only its configuration is taken. `adapter` is a PEFT folder or a GGUF adapter to
    go on from.
    `lora_rank` 0 trains all weights. `lora_targets` are PEFT's target modules: "all-linear", or names.
    `dtype` "auto" is bfloat16 on a GPU and float32 elsewhere.
    """

    model: str | None = None
    random_weights: bool = False
    adapter: str | None = None
    lora_rank: int = 0
    lora_alpha: int = 32
    lora_targets: str | tuple[str, ...] = "all-linear"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    gradient_checkpointing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """What is read in training.

    `examples` are JSONL files as `memagent data` writes them, and functions (`module:function` or
    `file.py:function`) from a number, 0 and up, to an `Example`. They are mixed evenly over their union.
    `reward` names a function of an example and a trajectory, `scorer` a scorer; without both, the task's own.
    """

    examples: tuple[str, ...] = ()
    scorer: str | None = None
    reward: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """How attempts are made: `groups` examples a step, `attempts` at each (the paper's G).

    Groups whose rewards are all equal are dropped, and up to `refills` times others are drawn in their
    place; with 0 refills all groups are kept. `rows` bounds the conversations that are decoded together. With
    `server`, an OpenAI-compatible URL, another process generates; `push` says how it gets the new weights
    before each step, and `served_model` what it calls the model at first.
    """

    groups: int = 16
    attempts: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    refills: int = 3
    rows: int = 256
    server: str | None = None
    served_model: str | None = None
    push: Literal["vllm-lora", "sglang-weights", "none"] = "vllm-lora"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The objective. `clip_low` and `clip_high` bound the ratio, `kl_weight` is beta.

    `overlong_tokens` is the length of the buffer before a completion's limit in which the reward falls (0:
    off). `credit` "trajectory" gives every conversation the advantage; "answer" only the last one, which
    is what a trainer of single conversations would do, and is here to compare with.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_weight: float = 1e-3
    divide_by_std: bool = False
    overlong_tokens: int = 0
    credit: Literal["trajectory", "answer"] = "trajectory"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW, constant after a linear warm-up.

    `updates` is the number of optimizer steps for each step's rollouts. `batch_tokens` bounds the tokens of a
    micro-batch, which changes memory and speed, not the gradient. `layout` is how its sequences are laid
    out: "shared" computes a common beginning once, "packed" pads nothing, "padded" is for models whose
    attention cannot be replaced.
    """

    learning_rate: float = 1e-6
    warmup_steps: int = 20
    weight_decay: float = 0.01
    betas: tuple[float, ...] = (0.9, 0.999)
    max_gradient_norm: float = 1.0
    updates: int = 1
    batch_tokens: int = 16384
    layout: Literal["shared", "packed", "padded"] = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartSettings:
    """Imitation before reinforcement. `trajectories` is a file of `memagent train collect`, or "oracle".

    "oracle" writes the trajectories from the solutions of `[data]`'s examples, `count` of them; a function
    (`file.py:function`) from an example to a `Trajectory` does as well. At a share `mistakes` of the chunks
    without evidence the oracle notes something all the same; not that is imitated, but how it goes on from
    there, so that the model learns to let go of what it should not have noted.

    `sequences` are drawn for a step, up to `neighbours` at a time whose prompts begin alike: where several
    questions are asked of one document, layout "shared" then computes a chunk once for them. Over the last
    `decay_steps` the learning rate falls to zero.
    """

    trajectories: str = "oracle"
    count: int = 256
    mistakes: float = 0.0
    steps: int = 0
    sequences: int = 8
    neighbours: int = 1
    learning_rate: float = 2e-5
    warmup_steps: int = 10
    decay_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """Held-out evaluation every `every` steps (0: never) on the first `count` of `examples`, greedy.

    `examples` is as in `[data]`; `before` is whether the untrained policy is evaluated as well.
    """

    every: int = 0
    examples: tuple[str, ...] = ()
    count: int = 64
    before: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Everything a run is told. `read` are the settings of a read, as in `memagent ask`.

    A checkpoint is written every `checkpoint_every` steps and after the last; the newest `keep` stay.
    """

    steps: int = 100
    seed: int = 0
    checkpoint_every: int = 10
    keep: int = 2
    policy: PolicySettings = field(default_factory=PolicySettings)
    read: Settings = field(default_factory=Settings)
    data: DataSettings = field(default_factory=DataSettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    warm_start: WarmStartSettings = field(default_factory=WarmStartSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)

    def __post_init__(self) -> None:
        above_zero = {
            "steps": self.steps + 1, "checkpoint_every": self.checkpoint_every, "keep": self.keep,
            "rollout.groups": self.rollout.groups, "rollout.attempts": self.rollout.attempts,
            "rollout.rows": self.rollout.rows, "rollout.temperature": self.rollout.temperature,
            "rollout.refills": self.rollout.refills + 1, "optimizer.updates": self.optimizer.updates,
            "optimizer.batch_tokens": self.optimizer.batch_tokens,
            "optimizer.learning_rate": self.optimizer.learning_rate,
            "warm_start.sequences": self.warm_start.sequences,
            "warm_start.neighbours": self.warm_start.neighbours, "evaluation.count": self.evaluation.count,
        }  # fmt: skip
        for name, value in above_zero.items():
            if not value > 0:
                raise SettingsError(f"{name} is too small: it must be above 0 (steps and refills: not below)")
        if self.policy.adapter and self.policy.lora_rank:
            raise SettingsError("policy.adapter brings a LoRA of its own rank: leave policy.lora_rank out")
        if self.evaluation.every and not self.evaluation.examples:
            raise SettingsError("evaluation.every needs examples: set evaluation.examples")
        if not 0 <= self.warm_start.mistakes <= 1:
            raise SettingsError("warm_start.mistakes is a share: it lies in [0, 1]")
        if not 0 <= self.loss.clip_low < 1 or self.loss.clip_high < 0 or self.loss.kl_weight < 0:
            raise SettingsError("loss: clip_low lies in [0, 1), clip_high and kl_weight are not negative")

    def recorded(self) -> dict[str, Any]:
        """The settings as they are kept with a run, without the endpoint's key."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        values["read"].pop("api_key")
        return values


def load_training(path: str | Path, overrides: Mapping[str, Any] | None = None) -> TrainingSettings:
    """The settings of a TOML file, with the values of `overrides`, tables like its own, put over them.

    Raises `SettingsError` naming the file, table and key that is wrong.
    """
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path} is no TOML: {error}") from error
    table = _merged(table, overrides or {})
    settings: TrainingSettings = _build(TrainingSettings, table, str(path))
    return _located(settings, path.parent)


def restored(record: Mapping[str, Any], place: str) -> TrainingSettings:
    """The settings that a run was recorded with. Raises `SettingsError` naming the `place` they are from."""
    settings: TrainingSettings = _build(TrainingSettings, record, place)
    return settings


def _located(settings: TrainingSettings, folder: Path) -> TrainingSettings:
    """The settings with the files and folders they name found from here; what is no file stays as it is."""

    def found(name: str | None) -> str | None:
        file, colon, function = (name or "").partition(".py:")
        place = folder / (file + ".py" if colon else file)
        return f"{place}{colon and ':'}{function}" if name and place.exists() else name

    def all_found(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(found(name) or name for name in names)

    policy, read, data = settings.policy, settings.read, settings.data
    evaluation, warm_start = settings.evaluation, settings.warm_start
    return replace(
        settings,
        policy=replace(policy, model=found(policy.model), adapter=found(policy.adapter)),
        read=replace(read, model=found(read.model), templates=found(read.templates),
                     adapter=found(read.adapter), tokenizer=found(read.tokenizer)),
        data=replace(data, examples=all_found(data.examples), reward=found(data.reward)),
        evaluation=replace(evaluation, examples=all_found(evaluation.examples)),
        warm_start=replace(warm_start, trajectories=found(warm_start.trajectories) or "oracle"),
    )  # fmt: skip


def _merged(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(table)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _build(kind: type[Any], table: Mapping[str, Any], place: str) -> Any:
    """An instance of a dataclass from a table, nested ones included."""
    hints = get_type_hints(kind)
    names = {item.name for item in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in names:
            near = "".join(f", did you mean {it!r}?" for it in difflib.get_close_matches(name, names, n=1))
            raise SettingsError(f"{place}: unknown setting {name!r}{near}")
        values[name] = _converted(hints[name], value, f"{place}: {name}")
    try:
        return kind(**values)
    except SettingsError as error:
        raise SettingsError(f"{place}: {error}") from error


def _converted(hint: Any, value: Any, place: str) -> Any:
    """The value in the form that a field's type asks for."""
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise SettingsError(f"{place} must be a table")
        return _build(hint, value, place)
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    for kind in kinds:
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if get_origin(kind) is tuple and isinstance(value, list):
            return tuple(_converted(get_args(kind)[0], item, place) for item in value)
        if kind is float and type(value) in (int, float):
            return float(value)
        if type(value) is kind:
            return value
    wanted = " or ".join(_noun(kind) for kind in kinds if kind is not type(None))
    raise SettingsError(f"{place} is {value!r}, it must be {wanted}")


def _noun(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    if get_origin(kind) is tuple:
        return "a list"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}.get(kind, str(kind))
