"""How many floating-point operations (FLOPs) workflows take, by length, from a model's config.json alone.

A multiplication and an addition count as two. In a call with a prompt of P tokens, K of them cached, and a
completion of C tokens, all layers process T = P - K + C - 1 tokens (the last one sampled is not read again),
and the output matrix processes C:

    2 T layers hidden (2 heads d + 2 kv_heads d + 3 intermediate)     projections and gated feed-forward
    + 4 heads d x the positions attended to                           scores and sums, in each layer
    + 2 C hidden vocabulary                                           logits

A token at position p attends to p positions, but in a layer with a sliding window to at most the window.
Small terms are left out: norms, activations, softmax, rotation. Models with experts, linear attention or
other shapes are refused.

The result is the most that a read takes: memories and replies fill their budgets, every note is new, and no
prefix cache helps. Budgets are those of `--config`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import measure

from memagent import MemAgentError, ReadSettings, SettingsError, Usage, text_document
from memagent.engines.scripted import count_words
from memagent.evaluation.statistics import Size, growth
from memagent.reading.api import begin_forecast
from memagent.reading.workflows import workflows
from memagent.reports import drawing
from memagent.settings import load_settings
from memagent.storage import read_json
from memagent.types import Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Flops = Mapping[str, Mapping[int, int]]
"""By workflow and length in tokens."""

GATED = (
    "llama", "mistral", "ministral", "qwen2", "qwen3", "phi3", "smollm3", "olmo2", "gemma", "gemma2",
    "gemma3_text", "granite", "seed_oss",
)  # fmt: skip
"""The values of `model_type` in config.json that have this shape."""

_LENGTHS = tuple(2**power for power in range(13, 23))  # 8K to 4M
_WORKFLOWS = (
    "full",
    "gated",
    "heads",
    "parallel",
    "tree",
    "reread",
)  # those installed, of which three are a package's
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
            _count_attended(last, window) - _count_attended(usage.cached_tokens, window)
            for window in self.windows
        )
        logits = 2 * usage.completion_tokens * self.hidden * self.vocabulary
        return 2 * tokens * weights + 4 * self.heads * self.head_size * seen + logits


def _count_attended(positions: int, window: int | None) -> int:
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
    settings = settings.replace(workflow=workflow, screen=False)
    problem = " ".join(["why"] * _PROBLEM_TOKENS)
    model = Model("words", count_words, "words", calls=_CALLS, chat_tokens=0)
    flops: dict[int, int] = {}
    for length in lengths:
        read = begin_forecast(problem, text_document("w " * length), model, settings)
        flops[length] = sum([shape.flops(conversation.completion.usage) async for conversation in read])
    return flops


def flops_table(by_workflow: Flops) -> str:
    """A row for each workflow, a column for each length, and the growth: the exponent b of a × length^b."""
    lengths = next(iter(by_workflow.values()))
    rows = [
        [name, *(_number(flops / 1e15) for flops in by_length.values()), _exponent(by_length)]
        for name, by_length in by_workflow.items()
    ]
    return measure.table(
        ["10^15 FLOPs", *(str(Size("tokens", length)) for length in lengths), "growth"], rows
    )


def _exponent(by_length: Mapping[int, int]) -> str:
    exponent = growth(by_length.items())
    return "–" if exponent is None else f"{exponent:.2f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def draw(name: str, flops: Flops) -> Figure:
    """A line for each workflow, against the length, both axes logarithmic."""
    figure, (panel,) = drawing.panels(1, 1, 8, 5)
    for number, (workflow, by_length) in enumerate(flops.items()):
        panel.plot(list(by_length), list(by_length.values()), label=workflow, **drawing.style(number))
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    lengths = next(iter(flops.values()))
    panel.set_xticks(list(lengths), [str(Size("tokens", length)) for length in lengths])
    panel.set_xlabel("length of the document, tokens")
    panel.set_ylabel("FLOPs")
    panel.set_title(f"FLOPs by length of the document, {drawing.plain(name)}", loc="left")
    drawing.legend(figure, panel)
    return figure


def main() -> None:
    """Compute, print the table, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path, help="a model's config.json, or the folder that holds it")
    parser.add_argument("--length", type=int, nargs="+", default=_LENGTHS, help="tokens (8K to 4M, doubling)")
    parser.add_argument(
        "--workflow",
        nargs="+",
        default=[workflow for workflow in _WORKFLOWS if workflow in workflows()],
        choices=list(workflows()),
        metavar="NAME",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with budgets")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw a picture (needs the extra report)")
    measure.add_json_flag(parser)
    args = parser.parse_args()
    lengths = sorted(set(args.length))
    try:
        shape, settings = shape_of(args.model), load_settings({}, args.config).read
        flops = {name: asyncio.run(flops_by_length(shape, name, lengths, settings)) for name in args.workflow}
    except MemAgentError as error:
        parser.error(str(error))
    print(flops_table(flops))
    if args.plot:
        name = (args.model if args.model.is_dir() else args.model.parent).resolve().name
        drawing.save({args.plot.stem: lambda: draw(name, flops)}, args.plot.parent)
    measure.write_json(args.json, measure.provenance() | {"shape": asdict(shape), "flops": flops})


if __name__ == "__main__":
    main()
