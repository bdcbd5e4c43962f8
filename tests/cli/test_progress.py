"""What is shown of reads that are under way."""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import rich

from cli.terminal import on_terminal
from memagent import Read, ReadSettings, ScriptedEngine, Spent, text_document
from memagent.cli import main
from memagent.cli.progress import ReadDisplay, clock, describe_progress
from memagent.reading.progress import Progress
from server import Server, facts_document

pytestmark = pytest.mark.usefixtures("gated")

SETTINGS = ReadSettings(workflow="gated", chunk_tokens=100)
UNDER_WAY = Progress(
    chunks=3, fraction=0.25, seconds=30.0,
    seconds_left=90.0, tokens_per_second=432.1,
    spent=Spent(calls=3, prompt_tokens=123456, completion_tokens=7890, cost=0.125),
)  # fmt: skip


def test_the_time_left_comes_first() -> None:
    assert describe_progress(UNDER_WAY) == (
        "90 s left, chunk 3 of ~12, 432 tokens/s, 123,456 tokens in, 7,890 out, cost 0.125"
    )
    assert "chunk 3 of ~12, 38,917 tokens/s, " in describe_progress(
        replace(UNDER_WAY, tokens_per_second=38917.2)
    )


def test_the_chunks_in_all_are_more_than_those_read_until_the_end() -> None:
    assert replace(UNDER_WAY, chunks=2, fraction=0.81).chunks_in_all == 3
    assert replace(UNDER_WAY, chunks=2, fraction=1.0).chunks_in_all == 2


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (3600, "60 min"), (9000, "2 h 30 min")]
)
def test_times_are_rounded(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def screen(questions: list[str], width: int, memory: str = "A hat was lost.") -> str:
    """What a terminal shows of reads of some questions that are under way."""
    rich.reconfigure(file=io.StringIO(), width=width, height=40, force_terminal=True, color_system=None)
    console = rich.get_console()
    display = ReadDisplay(False, questions)
    document = text_document("Some words of a story. " * 100)
    for number, question in enumerate(questions, 1):
        read = Read(question, document, ScriptedEngine([memory] * 9), SETTINGS)
        display.begin(number, read)

        async def step(number: int = number, read: Read = read) -> None:
            async for conversation in read:
                display.show(number, conversation)
                return

        asyncio.run(step())
    with console.capture() as captured:
        console.print(display)
    return captured.get()


def test_several_questions_have_labelled_bars_and_titled_memories() -> None:
    output = screen(["What was lost?", "Who lost it?"], 100)
    assert "1 What was lost?" in output and "2 Who lost it?" in output and output.count(" left") == 2
    assert "memory: 2 Who lost it?" in output and "A hat was lost." in output
    assert "memory:" not in screen(["What was lost?"], 100), "one question needs no title"


@pytest.mark.parametrize("questions", [["What was lost?"], ["What was lost?", "Who lost it?"]])
def test_at_60_columns_the_time_left_is_there(questions: list[str]) -> None:
    output = screen(questions, 60)
    assert output.count(" left") == len(questions)
    assert max(map(len, output.splitlines())) <= 60


def test_a_memory_cannot_write_on_the_terminal() -> None:
    assert r"\x1b[2J" in screen(["What was lost?"], 80, memory="gone \x1b[2J")


@pytest.mark.slow
def test_a_loading_model_is_said_at_once(tmp_path: Path, serve: Callable[..., Server]) -> None:
    story = tmp_path / "story.txt"
    story.write_text("A story. " * 20)
    server = serve(latency_seconds=2.0)
    started = time.monotonic()
    code, output = on_terminal(
        "ask", "who?", str(story), "--base-url", server.base_url, until=lambda output: "endpoint" in output
    )
    assert "reaching the endpoint, 0 s" in output and time.monotonic() - started < 20
    assert code == 143 and "interrupted" in output


@pytest.mark.slow
def test_after_a_resume_the_time_left_counts_what_is_read_now(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    """Kept replies come in no time: a rate with them would promise an end that is far too early."""
    story, server = tmp_path / "story.txt", serve()
    story.write_text(facts_document(chunks=24), "utf-8")
    flags = ["ask", "Which?", str(story), "--base-url", server.base_url, "--chunk-tokens", "100"]
    assert main([*flags, "--max-calls", "6"]) == 3
    server.latency_seconds = 1.0
    code, output = on_terminal(*flags, "--resume")
    lefts = [int(seconds) for seconds in re.findall(r"(\d+) s left", output)]
    assert code == 0 and max(lefts) >= 4, "five or more calls are left after the first one of a second"


def test_the_memory_stands_above_the_answer_once(serve: Callable[..., Server], tmp_path: Path) -> None:
    story = tmp_path / "story.txt"
    story.write_text(facts_document(chunks=3), "utf-8")
    code, output = on_terminal("ask", "Which?", str(story), "--base-url", serve().base_url)
    assert code == 0 and "memory" not in output.rpartition("; SEAL")[2]


def test_a_line_shows_what_a_long_memory_has_gained() -> None:
    first = "MEMORY\n" + "The hat was lost at the corner of Goodge Street. " * 6
    replies = [first, first + "The goose was white.", *["UNCHANGED"] * 9]
    output = io.StringIO()
    rich.reconfigure(file=output, width=300)
    document = text_document("Some words of a story. " * 100)
    read = Read("Which?", document, ScriptedEngine(replies), SETTINGS)
    display = ReadDisplay(False, ["Which?"])
    display.begin(1, read)

    async def step() -> None:
        async for conversation in read:
            display.show(1, conversation)

    asyncio.run(step())
    lines = output.getvalue().splitlines()
    assert "memory: The hat was lost" in lines[0] and lines[1].endswith("memory: …The goose was white.")
    assert re.search(r"^answered in \S+ s, \d+ s in all; ", lines[-1])
