"""`benchmarks/engine_settings.py`: its settings are llama.cpp's, its shares are paired."""

from typing import Any

import pytest

from benchmark_modules import BENCHMARKS, load_benchmark
from memagent.engines.llamacpp import embedded


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, which is in no package."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return load_benchmark("engine_settings")


@pytest.mark.skipif(embedded.find_installed() is None, reason="the embedded model is not installed")
def test_every_setting_changes_what_it_says(script: Any) -> None:
    xllamacpp = pytest.importorskip("xllamacpp")

    def told(params: Any) -> list[Any]:
        kinds = (params.n_batch, params.flash_attn_type, params.cache_type_k, params.cache_type_v)
        threads = (params.cpuparams.n_threads, params.cpuparams_batch.n_threads, params.no_extra_bufts)
        lookups = (params.speculative.ngram_simple.size_n, params.speculative.ngram_map_k.size_m)
        loras = len(params.lora_adapters)
        return [*kinds, *threads, params.speculative.types, *lookups, loras]

    seen = []
    for change in script.SETTINGS.values():
        params = xllamacpp.CommonParams()
        change(xllamacpp, params)
        assert told(params) not in seen, "like another"
        seen.append(told(params))


def test_a_share_is_of_the_same_prompts_time_by_the_default(script: Any) -> None:
    def pair(workflow: str, default: float, changed: float, text: str = "same") -> Any:
        first = script.Reply("same", 300, 10, default, 0.0)
        return script.Pair(workflow, first, script.Reply(text, 300, 10, changed / 2, changed / 2, 8, 6))

    pairs = [
        *(pair("gated", seconds, seconds / 2) for seconds in (1.0, 2.0, 40.0)),
        *(pair("overwrite", 1.0, changed, "other") for changed in (2.0, 3.0, 4.0)),
    ]
    name, _, written, gated, overwrite, taken, others = script.row("speculation", pairs)
    assert (name, gated, overwrite) == ("speculation", "0.50 [0.50, 0.50]", "3.00 [2.00, 4.00]")
    assert (written, taken, others) == (f"{60 / 15.25:.0f}", "36 of 48", "3 of 6")
