"""`memagent show`: what each step added to the memory and removed from it."""

from __future__ import annotations

from pathlib import Path

import pytest

import memagent
from memagent.cli import main

REPLIES = ["A hat was lost. It is black.", "UNCHANGED", "A hat was lost. It is brown.\nENOUGH", "The hat."]


def record(path: Path, replies: list[str]) -> None:
    document = memagent.text_document("Some words of a story. " * 50, name="story.txt")
    engine = memagent.ScriptedEngine(replies)
    memagent.read("What was lost?", document, engine=engine, trace=path,
                  settings=memagent.Settings(read=memagent.ReadSettings(chunk_tokens=100)))  # fmt: skip


def test_additions_and_removals_are_told_by_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_an_unfinished_journal_is_shown_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    with pytest.raises(memagent.EngineError):
        record(trace, REPLIES[:2])
    trace.write_bytes(trace.read_bytes() + b'{"type": "conver')
    assert main(["show", str(trace)]) == 0
    out, err = capsys.readouterr()
    assert "+ A hat was lost." in out and "answer:" not in out
    assert "--resume" in err


def test_another_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.txt"
    other.write_text("a poem\nof two lines\n")
    assert main(["show", str(other)]) == 2
    assert "not written by memagent" in capsys.readouterr().err
