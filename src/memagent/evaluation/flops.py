"""How many floating-point operations (FLOPs) a workflow takes, from the model's config.json alone.

A multiplication and an addition count as two. In a call with a prompt of P tokens, K of them cached, and a
completion of C tokens, all layers process T = P - K + C - 1 tokens (the last one sampled is not read again),
and the output matrix processes C:

    2 T layers hidden (2 heads d + 2 kv_heads d + 3 intermediate)     projections and gated feed-forward
    + 4 heads d x the positions attended to                           scores and sums, in each layer
    + 2 C hidden vocabulary                                           logits

A token at position p attends to p positions, but in a layer with a sliding window to at most the window.
Small terms are left out: norms, activations, softmax, rotation. Models with experts, linear attention or
other shapes are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from memagent.documents.opening import text_document
from memagent.engines.scripted import count_words
from memagent.errors import SettingsError
from memagent.reading.forecast import forecast
from memagent.settings import ReadSettings
from memagent.storage import read_json
from memagent.types import Model, Usage

GATED = (
    "llama", "mistral", "ministral", "qwen2", "qwen3", "phi3", "smollm3", "olmo2", "gemma", "gemma2",
    "gemma3_text", "granite", "seed_oss",
)  # fmt: skip
"""The values of `model_type` in config.json that have this shape."""

_CALLS = 16  # concurrent ones, which is how many parts tree divides a document into
_PROBLEM_TOKENS = 64
_ALL_SLIDE = ("mistral", "phi3")  # if there is a sliding window, all layers have it
_NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_KINDS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model. `windows` has each layer's sliding window, or None."""

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    windows: tuple[int | None, ...]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """The shape that a config.json describes. Raises `SettingsError` for an unsupported one."""
        config = config.get("text_config") or config  # multimodal models nest it
        kind = config.get("model_type")
        if kind not in GATED:
            raise SettingsError(f"model_type is {kind!r}: FLOPs are known for {', '.join(GATED)}")
        for name in _NAMES:
            value = config.get(name)
            if not isinstance(value, int) or value < 1:
                raise SettingsError(f"{name} is {value!r} in the model's config: it must be a whole number")
        heads = config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            windows=_windows(config),
        )

    def flops(self, usage: Usage) -> int:
        """The FLOPs of one call."""
        last = usage.tokens - 1
        tokens = last - usage.cached_tokens
        projections = 2 * (self.heads + self.kv_heads) * self.head_size
        weights = len(self.windows) * self.hidden * (projections + 3 * self.intermediate)
        seen = sum(
            _attended(last, window) - _attended(usage.cached_tokens, window) for window in self.windows
        )
        logits = 2 * usage.completion_tokens * self.hidden * self.vocabulary
        return 2 * tokens * weights + 4 * self.heads * self.head_size * seen + logits


def _attended(positions: int, window: int | None) -> int:
    """How many positions the first `positions` tokens attend to in total."""
    if window is None or positions <= window:
        return positions * (positions + 1) // 2
    return window * (window + 1) // 2 + (positions - window) * window


def _windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    layers: int = config["num_hidden_layers"]
    window: int | None = config.get("sliding_window")
    if kinds := config.get("layer_types"):
        if other := set(kinds) - _KINDS:
            raise SettingsError(f"a layer of the model is {min(other)!r}: FLOPs are not known for it")
        return tuple(None if kind == "full_attention" else window for kind in kinds)
    if not window or config.get("use_sliding_window") is False:
        return (None,) * layers
    if config["model_type"] in _ALL_SLIDE:
        return (window,) * layers
    raise SettingsError(
        f"the model's config has sliding_window {window} but no layer_types: add them, "
        "'full_attention' or 'sliding_attention' for each layer"
    )


def shape_of(path: Path) -> Shape:
    """The shape of a model, from its config.json or the folder that holds it. Raises `SettingsError`."""
    file = path / "config.json" if path.is_dir() else path
    config = read_json(file)
    if not isinstance(config, dict):
        raise SettingsError(f"{file} is not the config.json of a model: it is not an object")
    try:
        return Shape.of(config)
    except SettingsError as error:
        raise SettingsError(f"{file}: {error}") from error


async def flops_by_length(
    shape: Shape, workflow: str, lengths: Sequence[int], settings: ReadSettings
) -> dict[int, int]:
    """The FLOPs of reading a document of each length in tokens, for a problem of 64 tokens.

    Memories and replies fill their budgets; no prefix cache helps. The workflow itself runs, on an engine
    that only counts, taking words for tokens. Raises `SettingsError`.
    """
    settings = settings.changed(workflow=workflow, screen=False)
    problem = " ".join(["why"] * _PROBLEM_TOKENS)
    model = Model("words", count_words, "words", calls=_CALLS, chat_tokens=0)
    found: dict[int, int] = {}
    for length in lengths:
        usages: list[Usage] = []
        await forecast(problem, text_document("w " * length), model, settings, usages.append)
        found[length] = sum(map(shape.flops, usages))
    return found
