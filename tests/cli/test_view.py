"""`memagent view`: one file that holds a read, its text and its sources."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path

import memagent
from fixtures import Capture, Patch
from memagent.cli import main
from memagent.storage import read_log

FACTS = ("A hat was lost.", "The goose held a stone.")
STORY = "A hat was lost.\n\n" + "Nothing was said. " * 40 + "\n\nThe goose held a stone.\n"


def record(folder: Path, *names: str, workflow: str = "gated") -> Path:
    """The journal of a read of files with the same story, which keeps both of its facts."""
    for name in names:
        (folder / name).write_text(STORY, "utf-8")
    memory: list[str] = []

    def reply(messages: tuple[memagent.Message, ...]) -> str:
        prompt = messages[-1].content
        if "<chunk" not in prompt:
            return "The goose held a stone. A crown was lost."
        fresh = [
            fact
            for fact in ("A hat was lost.", "The goose held a stone.")
            if fact in prompt and fact not in memory
        ]
        memory.extend(fresh)
        if workflow == "evidence":
            return "\n".join(f"ADD {fact}" for fact in fresh) or "UNCHANGED"
        return "MEMORY\n" + " ".join(memory) if fresh else "UNCHANGED"

    settings = memagent.Settings(read=memagent.ReadSettings(workflow=workflow, chunk_tokens=60))
    trace = folder / "trace.jsonl"
    files = [folder / name for name in names]
    memagent.read("What?", files, engine=memagent.ScriptedEngine(reply), trace=trace, settings=settings)
    return trace


def held(page: Path, id: str) -> str:
    """What is embedded in a page."""
    match = re.search(rf'id="{id}"[^>]*>([^<]*)</script>', page.read_text("utf-8"))
    assert match, id
    return gzip.decompress(base64.b64decode(match[1])).decode()


def test_the_page_holds_the_journal_the_text_and_the_sources(tmp_path: Path, capsys: Capture) -> None:
    trace, out = record(tmp_path, "a.txt", "b.txt"), tmp_path / "page.html"
    assert main(["view", str(trace), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    lines = [json.loads(line) for line in held(out, "embedded-journal").splitlines()]
    *entries, answer = [line for line in read_log(trace) if line["type"] != "reply"]
    assert [
        {name: value for name, value in line.items() if name != "prompt_sha256"} for line in entries
    ] == lines[:-1]
    assert {**lines[-1], "statements": None} == answer, "the read did not look for sources"
    text = held(out, "embedded-text")
    assert text == STORY * 2
    supported, bare = lines[-1]["statements"]
    assert bare == {"text": "A crown was lost.", "source": None, "nearest": []}
    source = supported["source"]
    at, length = source["at"], len(source["excerpt"])
    assert text[at : at + length] == source["excerpt"] == "The goose held a stone."
    assert STORY[source["start"] : source["end"]] == source["excerpt"]


def test_no_sources_are_looked_for_if_no_answer_was_found(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "page.html"
    (tmp_path / "a.txt").write_text(STORY, "utf-8")
    engine = memagent.ScriptedEngine(lambda messages: "Nobody knows.")
    memagent.read("Who?", tmp_path / "a.txt", engine=engine, trace=trace, workflow="notes")
    assert main(["view", str(trace), "--out", str(out)]) == 0
    lines = [json.loads(line) for line in held(out, "embedded-journal").splitlines()]
    assert (lines[-1]["type"], lines[-1]["found"]) == ("answer", False)
    assert held(out, "embedded-text") == STORY


def test_the_sources_of_excerpts_are_those_of_the_memory(tmp_path: Path) -> None:
    trace, out = record(tmp_path, "a.txt", workflow="evidence"), tmp_path / "page.html"
    assert main(["view", str(trace), "--out", str(out)]) == 0
    lines = [json.loads(line) for line in held(out, "embedded-journal").splitlines()]
    supported, bare = lines[-1]["statements"]
    source = supported["source"]
    assert bare["source"] is None and source["excerpt"] == "The goose held a stone."
    assert STORY[source["at"] :].startswith(source["excerpt"])


def test_without_its_text_a_page_has_places_only(tmp_path: Path, capsys: Capture) -> None:
    trace, out = record(tmp_path, "a.txt"), tmp_path / "page.html"
    assert main(["view", str(trace), "--out", str(out), "--without-text"]) == 0
    assert 'id="embedded-text"' not in out.read_text("utf-8")
    (tmp_path / "a.txt").write_text("something else", "utf-8")
    assert main(["view", str(trace), "--out", str(out)]) == 0
    assert "has changed" in capsys.readouterr().err
    answer = json.loads(held(out, "embedded-journal").splitlines()[-1])
    assert answer["statements"] is None and 'id="embedded-text"' not in out.read_text("utf-8")


def test_no_file_but_a_page_is_overwritten(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    trace = record(tmp_path, "a.txt")
    document = tmp_path / "trace.html"
    document.write_text("<!doctype html><p>a document", "utf-8")
    assert main(["view", str(trace)]) == 2
    assert "trace.html exists" in capsys.readouterr().err
    assert document.read_text("utf-8") == "<!doctype html><p>a document"
    document.unlink()
    assert main(["view", str(trace)]) == main(["view", str(trace)]) == 0


def test_a_file_that_is_not_a_journal_leaves_no_page(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.jsonl").write_text("a poem\nof two lines\n", "utf-8")
    (tmp_path / "b.jsonl").write_bytes(b"")
    for name, message in (("a", "not written by memagent"), ("b", "is empty"), ("c", "cannot be read")):
        assert main(["view", str(tmp_path / f"{name}.jsonl"), "--out", str(tmp_path / "page.html")]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
