"""`memagent notes`, as it is used: by a terminal, killed, and by two at once."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memagent.cli import main
from memagent.errors import SettingsError
from memagent.notebooks import Notebook, Notebooks
from memagent.settings import user_data_path
from server import Server, facts_document, lasting_fault, refusal
from waiting import wait_for

pytestmark = pytest.mark.usefixtures("gated")

PATIENCE_SECONDS = 60.0
PARAGRAPHS = 48
BUDGETS = ("--chunk-tokens", "75", "--memory-tokens", "500")

Notes = Callable[..., tuple[int, str, str]]


@pytest.fixture
def notes(
    serve: Callable[..., Server],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Notes:
    """Run a command of `memagent notes` in a folder, with a reader of facts: code, stdout, stderr."""
    monkeypatch.setenv("OPENAI_BASE_URL", serve().base_url)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["notes", *words])
        return code, *capsys.readouterr()

    return run


def facts(text: str) -> list[str]:
    return [line for line in text.replace("; ", "\n").splitlines() if line.startswith("FACT")]


def test_a_notebook_from_its_making_to_its_end(notes: Notes, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "1.txt").write_text("FACT-1: one\n")
    assert notes("new", "Tagebuch März", "--about", "all facts")[0] == 0
    code, out, err = notes("add", "Tagebuch März", "log", *BUDGETS)
    assert (code, "version 1" in out, "1 file" in out) == (0, True, True), err
    (folder / "1.txt").write_text("FACT-1: one\nFACT-2: two\n")
    (folder / "2.txt.gz").write_bytes(gzip.compress(b"FACT-3: three\n"))
    code, out, _ = notes("add", "Tagebuch März", "log", "--quiet")
    assert (code, "version 2" in out, "2 files" in out) == (0, True, True)
    assert notes("add", "Tagebuch März", "log", "log/1.txt")[1] == "Tagebuch März: nothing new\n"
    assert notes("add", "Tagebuch März", "--text", "FACT-4: four")[0] == 0

    code, out, err = notes("ask", "Tagebuch März", "Which facts?")
    assert facts(out) == ["FACT-1: one", "FACT-2: two", "FACT-3: three", "FACT-4: four"]
    assert "from version 3" in err
    assert facts(notes("ask", "Tagebuch März", "Which facts?", "--version", "1")[1]) == ["FACT-1: one"]
    assert facts(notes("show", "Tagebuch März", "--version", "2")[1]) == facts(out)[:3]
    log = notes("log", "Tagebuch März")[1]
    assert log.index("log/1.txt, from byte 12") < log.index("log/2.txt.gz") < log.index("note of 20")
    changes = notes("diff", "Tagebuch März")[1].splitlines()
    assert "+ FACT-4: four" in changes and "- FACT-1: one" not in changes
    assert "+ FACT-1: one" in notes("diff", "Tagebuch März", "0", "1")[1]
    assert "- FACT-1: one" in notes("diff", "Tagebuch März", "1", "0")[1]

    assert "back from version 3 to 2" in notes("undo", "Tagebuch März")[1]
    versions = [json.loads(line) for line in notes("log", "Tagebuch März", "--json")[1].splitlines()]
    assert [version["undone"] for version in versions] == [False, False, True]
    assert versions[1]["calls"] == 1 and versions[1]["prompt_tokens"] > 0 and versions[1]["model"]
    assert notes("list")[1] == "Tagebuch März: version 2, about 'all facts'\n"
    assert notes("delete", "Tagebuch März", "--yes")[0] == 0
    assert notes("list")[1] == ""


def test_nothing_is_deleted_without_a_yes(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    notes("new", "a", "--about", "b")
    for typed in ("n\n", ""):  # no, and Ctrl-D
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        code, _, err = notes("delete", "a")
        assert code == 130 and "interrupted" in err and "defect" not in err
        assert "a: version 0" in notes("list")[1]


def test_what_is_kept_is_for_its_user_alone(notes: Notes, tmp_path: Path) -> None:
    notes("new", "a", "--about", "b", "--notebooks", "kept")
    assert notes("list")[1] == "" and "a: version 0" in notes("list", "--notebooks", "kept")[1]
    notes("new", "a", "--about", "b")
    notes("add", "a", "--text", "FACT-1: one")
    folder = user_data_path() / "notebooks"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("new", "../../etc/passwd", "--about", "x"), "is not a valid notebook name"),
        (("new", "..", "--about", "x"), "is not a valid notebook name"),
        (("new", "a\nb", "--about", "x"), "is not a valid notebook name"),
        (("new", "", "--about", "x"), "is not a valid notebook name"),
        (("new", "diary", "--about", "x"), "there is already a notebook 'diary': choose another name"),
        (("new", "b", "--about", " "), "--about"),
        (("add", "dairy", "--text", "x"), "did you mean 'diary'?"),
        (("add", "diary"), "what should be read?"),
        (("add", "diary", "--text", " "), "the note is empty"),
        (("add", "diary", "x.txt", "--text", "x"), "the --text or the files?"),
        (
            ("add", "diary", "--text", "x", "--workflow", "rag"),
            "keeps no memory that lives on: use auto, evidence",
        ),
        (("ask", "diary", "Who?"), "nothing has been read yet: add to it, then ask"),
        (("show", "diary", "--version", "7"), "has no version 7"),
        (("undo", "diary"), "there is nothing to undo"),
    ],
)
def test_impossible_requests_are_explained(notes: Notes, words: tuple[str, ...], message: str) -> None:
    notes("new", "diary", "--about", "all facts")
    code, out, err = notes(*words)
    assert (code, out, message in " ".join(err.split())) == (2, "", True), err


def test_a_folder_with_nothing_new_is_not_an_error(notes: Notes, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "1.txt").write_text("FACT-1: one\n")
    (folder / "2.txt").write_text(" \n\n")
    (folder / "3.bin").write_bytes(bytes(range(256)) * 4)
    notes("new", "diary", "--about", "all facts")
    for expected in ("version 1", "nothing new", "nothing new"):
        code, out, err = notes("add", "diary", "log")
        assert (code, expected in out) == (0, True)
        assert "2.txt has no text" in err and "3.bin is a binary file" in err
    code, _, err = notes("add", "diary", "log/2.txt")
    assert code == 4 and "2.txt has no text" in err


def test_a_file_that_is_damaged_late_does_not_take_the_others_with_it(notes: Notes, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "1.txt").write_text("FACT-1: one\n")
    (folder / "2.txt.gz").write_bytes(gzip.compress(os.urandom(2**18).hex().encode())[:-9])
    notes("new", "n", "--about", "all facts")
    code, out, err = notes("add", "n", "log", "--quiet")
    assert (code, "version 1" in out) == (0, True)
    assert err == "left out: log/2.txt.gz is damaged: it ends too early\n"
    assert facts(notes("show", "n")[1]) == ["FACT-1: one"]


def test_what_nothing_was_noted_of_still_counts_as_new(
    notes: Notes, serve: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "facts.txt").write_text("FACT-1: one\n")
    notes("new", "diary", "--about", "all facts")
    silent = ("--base-url", serve(lambda messages: "UNCHANGED").base_url)
    code, out, err = notes("add", "diary", "facts.txt", *silent)
    assert (code, out) == (0, "") and "nothing was noted of facts.txt, which still counts as new" in err
    assert "diary: version 0" in notes("list")[1]
    assert "version 1" in notes("add", "diary", "facts.txt")[1]


def test_a_file_that_adds_nothing_counts_as_read_and_it_is_said(notes: Notes, tmp_path: Path) -> None:
    (tmp_path / "facts.txt").write_text("FACT-1: one\n")
    (tmp_path / "rain.txt").write_text("It rained all day.\n")
    notes("new", "diary", "--about", "all facts")
    assert "nothing was noted" not in notes("add", "diary", "facts.txt")[2]
    code, out, err = notes("add", "diary", "rain.txt")
    assert (code, "version 2" in out) == (0, True)
    assert "nothing was noted of rain.txt: version 2 has the memory of version 1" in err
    assert "to read it again, memagent notes undo diary" in err
    assert notes("add", "diary", "rain.txt")[1] == "diary: nothing new\n"


def test_what_found_no_room_is_not_called_nothing(notes: Notes, tmp_path: Path) -> None:
    (tmp_path / "facts.txt").write_text("FACT-1: one\n")
    notes("new", "diary", "--about", "all facts")
    words = ("add", "diary", "facts.txt", "--workflow", "notes", "--memory-tokens", "5")
    _, out, err = notes(*words)
    assert out == "" and "the memory has no room for what was noted of facts.txt" in err


def test_sources_are_printed_only_if_they_are_asked_for(notes: Notes) -> None:
    notes("new", "diary", "--about", "all facts")
    notes("add", "diary", "--text", "FACT-1: one", "--workflow", "notes")
    ask = ("ask", "diary", "Which?", "--workflow", "notes")
    assert notes(*ask)[1] == "FACT-1: one\n"
    assert "characters 0 to 11: 'FACT-1: one'" in notes(*ask, "--cite")[1]


def test_a_memory_over_a_smaller_budget_is_not_cut_in_silence(notes: Notes) -> None:
    notes("new", "diary", "--about", "all facts")
    notes("add", "diary", "--text", " ".join(f"FACT-{n}: value" for n in range(30)))
    for words in (("add", "diary", "--text", "FACT-99: more"), ("ask", "diary", "Which?")):
        code, out, err = notes(*words, "--memory-tokens", "40")
        assert (code, out) == (2, "") and "its budget is 40: raise --memory-tokens" in " ".join(err.split())
    assert notes("add", "diary", "--text", "FACT-99: more")[0] == 0


def test_a_damaged_file_and_one_of_another_format_are_said_to_be_so(notes: Notes) -> None:
    notes("new", "diary", "--about", "all facts")
    file = user_data_path() / "notebooks" / "notebooks.sqlite"
    for version in (1, 99):
        with sqlite3.connect(file) as db:
            db.execute(f"PRAGMA user_version = {version}")
        db.close()
        assert f"has format {version}" in notes("list")[2]
    file.write_bytes(b"not a database, not even a little one" * 99)
    code, _, err = notes("list")
    assert code == 2 and "notebooks.sqlite cannot be used" in " ".join(err.split())


def test_what_the_model_fails_at_is_kept_for_the_next_time(
    notes: Notes, serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "facts.txt").write_text(facts_document(12, words=30))
    notes("new", "diary", "--about", "all facts")
    whole = serve()
    failing = serve(faults=lasting_fault(refusal(400, "no more"), spared=4))
    monkeypatch.setenv("OPENAI_BASE_URL", failing.base_url)
    code, out, err = notes("add", "diary", "facts.txt", *BUDGETS)
    assert (code, out) == (3, "") and "run the same command again to continue" in " ".join(err.split())
    assert notes("log", "diary")[1] == "about: all facts\n"
    monkeypatch.setenv("OPENAI_BASE_URL", whole.base_url)
    code, out, _ = notes("add", "diary", "facts.txt", *BUDGETS)
    version = Notebook("diary").version()
    assert code == 0 and len(whole.paid) == version.spent.calls - 4
    assert len(facts(version.memory)) == 8


def test_a_folder_that_grew_upwards_continues_where_it_stopped(
    notes: Notes, serve: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "log" / "sub").mkdir(parents=True)
    (tmp_path / "log" / "sub" / "1.txt").write_text(facts_document(9))
    (tmp_path / "log" / "sub" / "2.txt").write_text("FACT-98: two")
    notes("new", "n", "--about", "all facts")
    server = serve()
    add = ("add", "n", "log", *BUDGETS, "--base-url", server.base_url)
    assert notes(*add, "--max-calls", "3")[0] == 3 and len(server.paid) == 3
    (tmp_path / "log" / "3.txt").write_text("FACT-99: three")  # names are now shown from one folder up
    code, out, _ = notes(*add, "--json")
    assert code == 0 and sum(json.loads(line)["chunks"] for line in out.splitlines()) == len(server.paid)


def start(words: list[str], server: Server) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "memagent", "notes", *words, "--base-url", server.base_url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _is_claimed() -> bool:
    try:
        Notebooks().claim(1).close()
    except SettingsError:
        return True
    return False


@pytest.mark.slow
def test_an_addition_that_is_killed_and_two_at_once(
    notes: Notes, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """Killed with signal 9 twice, then two processes add at once: each word of it is paid once."""
    (tmp_path / "facts.txt").write_text(facts_document(PARAGRAPHS, words=30))
    notes("new", "diary", "--about", "all facts")
    server = serve(latency_seconds=0.03)
    words = ["add", "diary", "facts.txt", *BUDGETS]
    for kills in range(1, 3):
        process, before = start(words, server), len(server.paid)
        wait_for(lambda before=before: len(server.paid) >= before + 3, process)
        process.kill()
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
        assert server.paid_twice <= kills
        assert Notebook("diary").version().number == 0
    (tmp_path / "more.txt").write_text("FACT-99: more\n")
    first = start(words, server)
    wait_for(_is_claimed, first)
    second = start(["add", "diary", "more.txt", *BUDGETS], server)
    for process in (first, second):
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, err
    assert server.paid_twice <= 2
    versions = Notebook("diary").versions()
    assert len(versions) == 2
    numbers = [int(fact.split(":")[0][5:]) for fact in facts(versions[-1].memory)]
    assert sorted(numbers) == [*(n for n in range(PARAGRAPHS) if n % 3), 99]
    assert [
        path.suffix for path in (user_data_path() / "notebooks").iterdir() if path.suffix == ".jsonl"
    ] == []
