"""`benchmarks/flops.py`: FLOPs from a model's sizes, on numbers worked by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmark_modules import load_benchmark
from memagent import ReadSettings, SettingsError, Usage
from memagent.evaluation.statistics import growth

pytestmark = pytest.mark.slow

Flops = Callable[..., int]

SMALL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 3, "intermediate_size": 5, "vocab_size": 7,
}  # fmt: skip
SHORT = ReadSettings(chunk_tokens=500, memory_tokens=100, answer_tokens=100, problem_tokens=200)


@pytest.fixture
def script() -> Any:
    """The script, which is in no package."""
    return load_benchmark("flops")


@pytest.fixture
def flops(script: Any) -> Flops:
    def count(prompt: int, completion: int, cached: int = 0, **config: Any) -> int:
        return int(script.Shape.of({**SMALL, **config}).flops(Usage(prompt, completion, cached)))

    return count


def test_a_call_is_the_one_worked_by_hand(flops: Flops) -> None:
    # A layer has 4 x 6 + 2 (4 x 3) + 6 x 4 weights of attention and 3 (4 x 5) of feed-forward: 72 + 60.
    # One token that is read, one that is sampled: 2 x 1 x 2 x 132, 4 x 2 x 3 x 1 in each layer, 2 x 4 x 7.
    assert flops(1, 1) == 528 + 48 + 56
    # 10 tokens and 3 sampled: 12 see the weights and attend to 1 + ... + 12 = 78 positions; 3 logits.
    assert flops(10, 3) == 2 * 12 * 2 * 132 + 2 * 24 * 78 + 3 * 56


def test_cached_tokens_are_attended_to_but_not_computed(flops: Flops) -> None:
    assert flops(10, 3) - flops(10, 3, cached=4) == 2 * 4 * 2 * 132 + 2 * 24 * (1 + 2 + 3 + 4)


def test_a_sliding_window_bounds_what_is_attended_to(flops: Flops) -> None:
    # 12 positions in a window of 5: 1 + 2 + 3 + 4 + 5 x 8 = 50 instead of 78, in one layer of two.
    kinds = ["full_attention", "sliding_attention"]
    assert flops(10, 3) - flops(10, 3, sliding_window=5, layer_types=kinds) == 24 * (78 - 50)
    every = flops(10, 3, model_type="mistral", sliding_window=5)
    assert flops(10, 3) - every == 2 * 24 * (78 - 50)
    assert flops(10, 3, model_type="qwen2", sliding_window=5, use_sliding_window=False) == flops(10, 3)


def test_what_is_left_out_of_a_config_has_its_usual_value(script: Any) -> None:
    with_heads = {**SMALL, "head_dim": 2, "num_key_value_heads": 2}
    without = {
        name: value for name, value in SMALL.items() if name not in ("head_dim", "num_key_value_heads")
    }
    shapes = [script.Shape.of(config) for config in (with_heads, without, {"text_config": without})]
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral'"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"layer_types": ["linear_attention"] * 2}, "'linear_attention'"),
        ({"sliding_window": 5}, "no layer_types"),
    ],
)
def test_a_model_of_another_shape_is_refused(
    script: Any, tmp_path: Path, config: dict[str, Any], wrong: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, **config}))
    with pytest.raises(SettingsError, match=wrong):
        script.shape_of(tmp_path)
    with pytest.raises(SettingsError, match="cannot be read"):
        script.shape_of(tmp_path / "none.json")


def test_reading_in_chunks_is_linear_and_one_prompt_is_not(script: Any) -> None:
    shape = script.Shape.of({**SMALL, "num_hidden_layers": 8})  # attention weighs much beside a width of 4
    lengths = (4000, 8000, 16000)
    flops_by_workflow = {
        name: asyncio.run(script.flops_by_length(shape, name, lengths, SHORT))
        for name in ("gated", "full", "rag")
    }
    exponents = {name: growth(by_length.items()) for name, by_length in flops_by_workflow.items()}
    assert exponents["gated"] == pytest.approx(1.0, abs=0.05)
    assert exponents["full"] is not None and exponents["full"] > 1.7
    assert len(set(flops_by_workflow["rag"].values())) == 1, "what it shows does not grow"


def test_the_calls_of_a_read_are_added_up(script: Any) -> None:
    """Overwriting two chunks: two updates and an answer, whose prompts hold our words as well."""
    shape = script.Shape.of({**SMALL, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 1})
    short, longer = asyncio.run(script.flops_by_length(shape, "overwrite", (1000, 1500), SHORT)).values()
    assert longer > short
    update = asyncio.run(script.flops_by_length(shape, "overwrite", (2000,), SHORT))[2000] - longer
    assert update == pytest.approx(longer - short, rel=0.01), "every further chunk takes the same"


def test_it_prints_a_line_for_each_workflow_and_draws_them(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, record, plot = tmp_path / "config.json", tmp_path / "flops.json", tmp_path / "flops.png"
    model.write_text(json.dumps(SMALL))
    (tmp_path / "budgets.toml").write_text("chunk_tokens = 400\n")
    command = ["flops.py", str(model), "--length", "2000", "1000", "--workflow", "gated", "full"]
    command += ["--config", str(tmp_path / "budgets.toml"), "--json", str(record), "--plot", str(plot)]
    monkeypatch.setattr("sys.argv", command)
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in lines[0].split("|")] == [
        "",
        "10^15 FLOPs",
        "1,000",
        "2,000",
        "growth",
        "",
    ]
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["gated", "full"]
    flops_by_workflow = json.loads(record.read_text("utf-8"))["flops"]
    assert flops_by_workflow["gated"]["1000"] > flops_by_workflow["full"]["1000"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")
