"""Where the statements of a notebook come from: what is told of a file stands in it, wherever it grew."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from facts import section
from files import pdf
from function_engine import FunctionEngine
from memagent import ReadSettings, SettingsError, open_document
from memagent.concurrency import drain
from memagent.documents.conversion import cache_folder
from memagent.engines.scripted import ScriptedEngine, count_words
from memagent.errors import CallLimitError
from memagent.notebooks import Notebook, Notebooks, note_document
from memagent.reading.sources import Statement
from memagent.reading.workflows import DEFAULT

SETTINGS = ReadSettings(
    workflow="gated", chunk_tokens=40, memory_tokens=500, answer_tokens=500, problem_tokens=20
)


def keep(prompt: str) -> str:
    """Each sentence with the word "key" of what it reads; its answer adds one that nobody wrote."""
    chunk, memory = section(prompt, "chunk"), section(prompt, "memory")
    if "ADD" in prompt:
        return "\n".join(f'ADD "{sentence}"' for sentence in keys(chunk)) or "UNCHANGED"
    old = keys(memory)
    if not chunk and "<text-" in prompt:
        return " ".join(keys(prompt)) or "It does not say."
    if not chunk:
        marks = re.findall(r"(E\d+) ", prompt)
        return " ".join([*old, *(f"[{mark}]" for mark in marks), "The moon is a key of cheese."])
    new = [sentence for sentence in keys(chunk) if sentence not in old]
    whole = "\n".join([*old, *new]) or "Nothing."
    gated = "MEMORY\n" + whole if new else "UNCHANGED"
    return gated if "UNCHANGED" in prompt else whole


def keys(text: str) -> list[str]:
    return re.findall(r"[^.\n\"]*\bkey\b[^.\n\"]*\.", text)


def add(notebook: Notebook, *paths: Path, settings: ReadSettings = SETTINGS) -> None:
    asyncio.run(drain(aiter(notebook.add(open_document(*paths), FunctionEngine(keep), settings))))


def ask(notebook: Notebook, settings: ReadSettings = SETTINGS, **values: Any) -> tuple[Statement, ...]:
    asking = notebook.ask("Which keys?", FunctionEngine(keep), settings.replace(cite=True), **values)
    return asyncio.run(asking).statements


def text_of(path: Path) -> str:
    return "".join(block.text for block in open_document(path).blocks())


@pytest.mark.parametrize("workflow", ["gated", "overwrite", "evidence"])
@pytest.mark.parametrize(("name", "line"), [
    ("log.txt", "{}\n"),
    ("log.txt", "é 鵝 \U0001fabf {}\r\n"),
    ("rows.jsonl", '{{"say": "{}"}}\n'),
])  # fmt: skip
def test_sources_stand_in_files_that_grow(name: str, line: str, workflow: str, tmp_path: Path) -> None:
    path, settings = tmp_path / name, SETTINGS.replace(workflow=workflow)
    notebook = Notebook.new("keys", "all keys", Notebooks(tmp_path / "notebooks"))
    written = ["The red key hangs in the hall.", "Nothing else.", "The blue key is lost.", "A key of iron."]
    path.write_bytes(b"\xef\xbb\xbf" if name == "log.txt" else b"")
    for sentence in written:
        with path.open("a", encoding="utf-8", newline="") as file:
            file.write(line.format(sentence))
        add(notebook, path, settings=settings)
    statements = notebook.version().statements
    assert len([statement for statement in statements if statement.source]) == 3
    text = text_of(path)
    for statement in [*statements, *ask(notebook, settings)]:
        assert (
            statement.source is None
            or statement.source.excerpt == text[statement.source.start : statement.source.end]
        )
    sources = {
        statement.text: statement.source and statement.source.file for statement in ask(notebook, settings)
    }
    assert sources["The moon is a key of cheese."] is None
    assert sum(source == str(path) for source in sources.values()) == 3 or workflow == "evidence"


def test_where_it_was_read_is_known_when_the_file_is_gone(tmp_path: Path) -> None:
    notebook = Notebook.new("keys", "all keys", Notebooks(tmp_path / "notebooks"))
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text("Some words. The red key hangs in the hall. More words.")
    second.write_text("The blue key is lost.")
    add(notebook, first)
    first.unlink()
    add(notebook, second)
    red, blue, _ = ask(notebook)
    assert red.source and (red.source.file, red.source.start) == (str(first), 12)
    assert blue.source and (blue.source.file, blue.source.start) == (str(second), 0)
    notebook.undo()
    assert [statement.text for statement in ask(notebook) if statement.source] == [red.text]
    assert [bool(statement.source) for statement in ask(notebook, version=2)] == [True, True, False]
    assert not asyncio.run(notebook.ask("Which keys?", FunctionEngine(keep), SETTINGS)).statements


def test_a_model_that_counts_more_tokens_does_not_cut_the_memory(tmp_path: Path) -> None:
    notebook = Notebook.new("keys", "all keys", Notebooks(tmp_path / "notebooks"))
    note = " ".join(f"Number {number} is the key of room {number}." for number in range(40))
    dense = FunctionEngine(keep, name="dense", count_tokens=lambda text: 3 * count_words(text))

    async def add_note(text: str, engine: Any, memory_tokens: int = 500) -> None:
        settings = SETTINGS.replace(workflow="gated", memory_tokens=memory_tokens)
        await drain(aiter(notebook.add(note_document(text), engine, settings)))

    asyncio.run(add_note(note, FunctionEngine(keep)))
    with pytest.raises(SettingsError, match="its budget is 500: raise `memory_tokens`"):
        asyncio.run(add_note("The moon is a key.", dense))
    assert notebook.version().number == 1
    asyncio.run(add_note("The moon is a key.", dense, 5000))
    assert len(keys(notebook.version().memory)) == 41


def test_a_pdf_that_was_saved_again_before_it_was_read_to_its_end_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf("This is the key. " * 12))
    notebook = Notebook.new("keys", "all keys", Notebooks(tmp_path / "notebooks"))
    with pytest.raises(CallLimitError):
        add(notebook, path, settings=SETTINGS.replace(max_calls=1))
    with path.open("ab") as file:
        file.write(b"% saved again\n")
    for entry in cache_folder().iterdir():
        entry.unlink()
    add(notebook, path)
    (version,) = notebook.versions()
    assert [(portion.start, portion.end) for portion in version.portions] == [(0, path.stat().st_size)]


def test_a_notebook_continues_with_the_workflow_of_its_memory(tmp_path: Path) -> None:
    notebook = Notebook.new("it", "all keys", Notebooks(tmp_path / "notebooks"))
    path, unnamed = tmp_path / "log.txt", SETTINGS.replace(workflow=None)
    path.write_text("The first key is red.\n")
    add(notebook, path)
    path.write_text("The first key is red.\nThe second key is blue.\n")
    add(notebook, path, settings=unnamed)
    assert [version.workflow for version in notebook.versions()] == ["gated", "gated"]
    assert keys(notebook.version().memory) == ["The first key is red.", "The second key is blue."]
    excerpts = [statement.source.excerpt for statement in ask(notebook, unnamed) if statement.source]
    assert excerpts == ["The first key is red.", "The second key is blue."]
    path.write_text(path.read_text() + "The third key is green.\n")
    with pytest.raises(SettingsError, match="does not consist of excerpts"):
        add(notebook, path, settings=SETTINGS.replace(workflow="notes"))
    fresh = Notebook.new("fresh", "all keys", Notebooks(tmp_path / "notebooks"))
    add(fresh, path, settings=unnamed)
    assert fresh.version().workflow == DEFAULT


def test_a_notebook_of_passages_is_asked_as_a_read_of_them_is(tmp_path: Path) -> None:
    notebook, settings = (
        Notebook.new("it", "all keys", Notebooks(tmp_path / "notebooks")),
        SETTINGS.replace(workflow="notes"),
    )
    path = tmp_path / "log.txt"
    path.write_text("The first key is red.\n")
    add(notebook, path, settings=settings)
    prompts = list[str]()
    engine = ScriptedEngine(lambda messages: prompts.append(messages[-1].content) or "Red.")
    assert asyncio.run(notebook.ask("Which key?", engine, settings)).answer == "Red."
    (prompt,) = prompts
    assert "- The first key is red." in prompt and "E1" not in prompt
