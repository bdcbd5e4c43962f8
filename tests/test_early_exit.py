"""`benchmarks/early_exit.py` tells where a patient reader would stop, and how much patience is enough."""

import asyncio
from typing import Any

import pytest

from benchmark_modules import load_benchmark
from memagent import Message, Read, ReadSettings, text_document
from memagent.concurrency import drain
from memagent.engines.scripted import ScriptedEngine
from memagent.types import Example

pytestmark = pytest.mark.slow

SETTINGS = ReadSettings(workflow="gated", chunk_tokens=40, memory_tokens=60, answer_tokens=40)


@pytest.fixture
def early_exit() -> Any:
    """The script, which is in no package."""
    return load_benchmark("early_exit")


def engine() -> ScriptedEngine:
    """Notes the facts that it is shown, and says of each memory that it is enough."""

    def reply(messages: tuple[Message, ...]) -> str:
        prompt = messages[-1].content
        if "<chunk-" not in prompt:
            return "done"
        facts = [fact for fact in ("First fact.", "Second fact.") if fact in prompt]
        chunk = prompt.partition("<chunk-")[2].partition("</chunk-")[0]
        return "MEMORY\n" + "\n".join(facts) + "\nENOUGH" if " fact." in chunk else "UNCHANGED"

    return ScriptedEngine(reply)


def example() -> Example:
    texts = [" ".join(f"word{index}x{number}" for number in range(30)) for index in range(12)]
    texts[2] += " First fact."
    texts[5] += " Second fact."
    facts = ("First fact.", "Second fact.")
    return Example("one", "task", "What are the facts?", "\n\n".join(texts), facts, 400, facts)


@pytest.mark.parametrize("patience", [0, 1, 2, 3, 5, 100])
def test_a_stop_is_where_a_read_with_that_patience_stops(patience: int, early_exit: Any) -> None:
    path = asyncio.run(early_exit.read_through("task", example(), engine(), SETTINGS))

    async def stopped() -> Any:
        settings = SETTINGS.replace(early_exit=True, exit_patience=patience)
        read = Read(example().problem, text_document(example().document), engine(), settings)
        await drain(aiter(read))
        return read.result

    result = asyncio.run(stopped())
    assert path.stop(patience) == (result.chunks if result.stopped_early else None)
    assert path.too_early(patience) is ("Second" not in result.memory)
    assert path.saved(patience) == pytest.approx(1 - result.chunks / len(path.steps))


def test_the_least_patience_is_proved_by_enough_examples(early_exit: Any) -> None:
    path = asyncio.run(early_exit.read_through("task", example(), engine(), SETTINGS))
    least = next(patience for patience in early_exit._PATIENCES if not path.too_early(patience))
    assert least > 0
    assert early_exit.least_patience([path] * 9, 0.1) == least, "(0 + 1) / (9 + 1)"
    assert early_exit.least_patience([path] * 8, 0.1) is None
    assert early_exit.least_patience([path] * 9, 1.0) == 0


def test_the_advice_is_measured_on_the_others(early_exit: Any) -> None:
    path = asyncio.run(early_exit.read_through("task", example(), engine(), SETTINGS))
    advice = early_exit.advice([path] * 18, 0.1)
    assert "chosen on 9 examples" in advice and "Of 9 others 0.0 [0, 30]% were left too early" in advice
    assert "9 examples prove of no patience" in early_exit.advice([path] * 18, 0.05)
    assert next(row[:3] for row in early_exit.rows([path])) == ("task", 0, 1)
    never = early_exit.Path("task", (early_exit.Step(10, changed=True, enough=False),) * 3, 10)
    assert "never said that it knows enough" in early_exit.advice([never] * 18, 0.1)
    assert "chosen on" in early_exit.advice([never, path] * 9, 0.1)
