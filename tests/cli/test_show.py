"""`memagent show`: what each step added to the memory and removed from it."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

import memagent
from facts import section
from fixtures import Capture
from function_engine import FunctionEngine
from memagent.cli import main
from memagent.cli.journals import Spans
from memagent.types import Completion

REPLIES = ["A hat was lost. It is black.", "UNCHANGED", "A hat was lost. It is brown.\nENOUGH", "The hat."]


def record(path: Path, replies: list[str]) -> None:
    document = memagent.text_document("Some words of a story. " * 50, name="story.txt")
    engine = memagent.ScriptedEngine(replies)
    settings = memagent.Settings(read=memagent.ReadSettings(workflow="gated", chunk_tokens=100))
    memagent.read("What was lost?", document, engine=engine, trace=path, settings=settings)


def test_additions_and_removals_are_shown_by_sentence(tmp_path: Path, capsys: Capture) -> None:
    trace = tmp_path / "trace.jsonl"
    record(trace, REPLIES)
    assert main(["show", str(trace)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "problem: What was lost?" in lines and "document: story.txt" in lines
    changes = [line for line in lines if line.startswith(("+ ", "- ", "unchanged", "enough", "answer: "))]
    assert changes == [
        "+ A hat was lost.",
        "+ It is black.",
        "unchanged",
        "- It is black.",
        "+ It is brown.",
        "enough is known",
        "answer: The hat.",
    ]


def test_a_wasted_call_is_reported(tmp_path: Path, capsys: Capture) -> None:
    trace, texts = tmp_path / "trace.jsonl", iter(["UNCHANGED", "A hat was lost.", "UNCHANGED"])
    document = memagent.text_document("Some words of a story. " * 50, name="story.txt")
    engine = memagent.ScriptedEngine(lambda _messages: next(texts, "It is black."), calls=2)
    settings = memagent.ReadSettings(workflow="gated", chunk_tokens=100, lookahead=2)
    memagent.read("What?", document, engine=engine, trace=trace, settings=memagent.Settings(read=settings))
    assert main(["show", str(trace)]) == 0
    matches = re.findall(r"^chunk (\d)|^  (asked ahead|unchanged|\+)", capsys.readouterr().out, re.MULTILINE)
    steps = ["".join(match) for match in matches]
    assert steps[:7] == ["1", "unchanged", "2", "+", "3", "asked ahead", "3"]


def test_a_reply_that_left_the_memory_unchanged_is_reported(tmp_path: Path, capsys: Capture) -> None:
    """A bare marker is no verdict: the model is asked again, for a note."""
    trace, document = tmp_path / "trace.jsonl", memagent.text_document("Some words of a story.")
    engine = memagent.ScriptedEngine(["MEMORY", "Nobody speaks\nof a hat."])
    settings = memagent.Settings(read=memagent.ReadSettings(workflow="gated"))
    trajectory = memagent.read("Which hat?", document, engine=engine, trace=trace, settings=settings)
    assert not trajectory.found
    assert main(["show", str(trace)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.startswith(("unchanged", "answer"))] == [
        "unchanged: 'MEMORY'",
        "unchanged: 'Nobody speaks of a hat.'",
        f"answer: {trajectory.answer}",
    ]


def test_a_verdict_is_shown(tmp_path: Path, capsys: Capture) -> None:
    trace, document = tmp_path / "trace.jsonl", memagent.text_document("A hat was lost. " * 50)
    verdict = Completion("No", alternatives={"Yes": -2.0, "No": -0.5})
    engine = FunctionEngine(lambda prompt: verdict if section(prompt, "text") else "A hat.")
    settings = memagent.Settings(read=memagent.ReadSettings(workflow="select", chunk_tokens=100))
    memagent.read("What was lost?", document, engine=engine, trace=trace, settings=settings)
    assert main(["show", str(trace)]) == 0
    assert ", verdict -1.5\n" in capsys.readouterr().out


def test_an_unfinished_journal_is_shown_as_far_as_it_goes(tmp_path: Path, capsys: Capture) -> None:
    trace = tmp_path / "trace.jsonl"
    with pytest.raises(memagent.EngineError):
        record(trace, REPLIES[:2])
    trace.write_bytes(trace.read_bytes() + b'{"type": "conver')
    assert main(["show", str(trace)]) == 0
    out, err = capsys.readouterr()
    assert "+ A hat was lost." in out and "answer:" not in out
    assert "--resume" in err


def test_another_file_is_refused(tmp_path: Path, capsys: Capture) -> None:
    other = tmp_path / "other.txt"
    other.write_text("a poem\nof two lines\n")
    assert main(["show", str(other)]) == 2
    assert "not written by memagent" in capsys.readouterr().err


def test_without_a_name_the_newest_journal_is_shown(nobody: Path, capsys: Capture) -> None:
    folder = nobody / "memagent" / "journals"
    assert main(["show"]) == 2
    assert f"there is no journal in {folder}" in capsys.readouterr().err
    for name, age in (("b", 100), ("a", 0)):
        record(folder / f"{name}.jsonl", ["A hat.", "UNCHANGED", "UNCHANGED", f"The hat of {name}."])
        os.utime(folder / f"{name}.jsonl", (time.time() - age,) * 2)
    assert main(["show"]) == 0
    out, err = capsys.readouterr()
    assert "answer: The hat of a." in out and str(folder / "a.jsonl") in err


def test_chunks_are_shown_as_long_as_the_document_is_the_same(tmp_path: Path, capsys: Capture) -> None:
    story, trace = tmp_path / "story.txt", tmp_path / "trace.jsonl"
    story.write_text("\n\n".join(f"Part {number}: " + "some words. " * 40 for number in range(12)), "utf-8")
    settings = memagent.Settings(read=memagent.ReadSettings(chunk_tokens=140, workflow="overwrite"))
    replies = [f"memory {number}" for number in range(9)]
    engine = memagent.ScriptedEngine(replies)
    memagent.read("What was lost?", story, engine=engine, trace=trace, settings=settings)
    assert main(["show", "--chunks", str(trace)]) == 0
    out = capsys.readouterr().out
    steps = re.findall(r"chunk \d+ \[([\d,]+), ([\d,]+)\).*\n((?:  \| .*\n)+)  . memory", out)
    assert len(steps) > 3
    for start, end, block in steps:
        text = story.read_text("utf-8")[int(start.replace(",", "")) : int(end.replace(",", ""))]
        assert [line[4:] for line in block.splitlines()] == text.splitlines()

    story.write_text("another story", "utf-8")
    assert main(["show", "--chunks", str(trace)]) == 0
    out, err = capsys.readouterr()
    assert "the document has changed" in err and "  | " not in out and "+ memory 1" in out
    story.unlink()
    assert main(["show", "--chunks", str(trace)]) == 0
    assert "story.txt" in capsys.readouterr().err


def test_chunks_of_a_folder_with_a_file_that_was_left_out(tmp_path: Path, capsys: Capture) -> None:
    folder, trace = tmp_path / "docs", tmp_path / "trace.jsonl"
    folder.mkdir()
    (folder / "a.txt").write_text("A hat was lost.")
    (folder / "0.html").write_text("<p> </p>")
    document = memagent.open_document(folder)
    engine = memagent.ScriptedEngine(["A hat.", "A hat."])
    memagent.read("What?", document, engine=engine, trace=trace, workflow="notes")
    assert main(["show", str(trace), "--chunks"]) == 0
    out, err = capsys.readouterr()
    assert "| A hat was lost." in out and "only the places" not in err


def test_the_text_of_a_chunk_is_the_one_of_its_span(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("Ünder the 🌉 bridge.\n" * 9, "utf-8")
    document = memagent.open_document(tmp_path / "a.txt", tmp_path / "b.txt")
    whole = "".join(block.text for block in document.blocks())
    spans = Spans(document)
    for start, end in ((0, 30), (150, 200), (10, 12), (len(whole) - 5, len(whole))):
        assert spans.text(start, end) == whole[start:end]
