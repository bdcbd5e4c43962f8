"""`memagent ask --continue`: another question about the documents of the last read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures import Capture, Patch, Serve
from memagent.cli import main
from memagent.cli.follow_up import last_read, reopen
from server import Server

ODD_NAMES = (
    "会議\u3000議事録.txt",
    "Report 9.41\u202fAM.txt",
    "café\xa0notes.txt",
    "the 👩\u200d🔬.txt",
    "two\nlines.txt",
    "not \udcff UTF-8.txt",
    "\\x41 \\\\n \\é\\.txt",
)


@pytest.fixture
def server(serve: Serve, monkeypatch: Patch) -> Server:
    """A model server that the environment names."""
    server = serve()
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    return server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """The current folder, with two documents."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "docs"
    folder.mkdir()
    for number, name in enumerate("ab"):
        (folder / f"{name}.txt").write_text(f"FACT-{number}: lamp.\n\n" + "So it goes on. " * 100, "utf-8")
    return folder


FIRST = (
    "ask",
    "Which facts?",
    "docs",
    "--workflow",
    "gated",
    "--chunk-tokens",
    "200",
    "--memory-tokens",
    "80",
)


def chunks_of(server: Server) -> list[str]:
    """The chunk of each prompt that has one."""
    prompts = [body["messages"][-1]["content"] for body in server.asked]
    return [
        prompt.partition("So it goes on.")[2].partition("</")[0]
        for prompt in prompts
        if "So it goes on." in prompt
    ]


def test_it_reads_the_same_chunks_in_the_same_way(server: Server, folder: Path, capsys: Capture) -> None:
    assert main([*FIRST, "--json"]) == 0
    first, read = json.loads(capsys.readouterr().out), chunks_of(server)
    server.requests.clear()
    (folder / "c.txt").write_text("It came later.", "utf-8")
    assert main(["ask", "--continue", "And which lamps?", "--json"]) == 0
    out, err = capsys.readouterr()
    second = json.loads(out)
    assert second["problem"] == "And which lamps?"
    same = ("workflow", "chunks", "document_tokens", "sources")
    assert [first[name] for name in same] == [second[name] for name in same]
    assert len(read) > 4 and chunks_of(server) == read
    assert "reading again docs/a.txt, docs/b.txt" in err and "gated, chunks of 200 tokens" in err


def test_a_flag_wins_over_the_last_read(
    server: Server, folder: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    assert main([*FIRST, "--temperature", "0.5"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("MEMAGENT_CHUNK_TOKENS", "90")
    words = ["--continue", "-q", "And which lamps?", "--workflow", "overwrite", "--json"]
    assert main(["ask", *words]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["workflow"] == "overwrite" and "overwrite, chunks of 200 tokens" in err
    assert server.asked[-1]["temperature"] == 0.5


def test_a_follow_up_may_be_followed_up_and_resumed(server: Server, folder: Path, capsys: Capture) -> None:
    assert main([*FIRST]) == 0
    assert main(["ask", "--continue", "And which lamps?", "--max-calls", "2"]) == 3
    server.requests.clear()
    assert main(["ask", "--continue", "And which lamps?", "--max-calls", "99", "--resume", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(server.asked) == result["calls"] - 2


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_a_document_is_found_again_by_an_odd_name(
    server: Server, name: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("FACT-0: lamp.", "utf-8")
    assert main(["ask", "Which facts?", name]) == 0
    assert main(["ask", "--continue", "And which lamps?"]) == 0, capsys.readouterr().err
    document = reopen(last_read())
    assert document and [source.origin for source in document.sources] == [Path(name)]


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_documents_must_be_as_they_were(server: Server, folder: Path, change: str, capsys: Capture) -> None:
    assert main([*FIRST]) == 0
    server.requests.clear()
    if change == "gone":
        (folder / "b.txt").unlink()
    else:
        (folder / "b.txt").write_text("FACT-9: other", "utf-8")
    assert main(["ask", "--continue", "And which lamps?"]) == 4
    err = capsys.readouterr().err
    assert server.asked == [] and ("docs/b.txt" in err if change == "gone" else "not as they were" in err)
    assert 'memagent ask "QUESTION" PATH...' in err


def test_what_cannot_be_continued_is_said(
    server: Server, folder: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    assert main(["ask", "--continue", "And which lamps?"]) == 2
    assert "there is no journal in" in capsys.readouterr().err
    assert main([*FIRST]) == 0
    assert main(["ask", "--continue", "And which lamps?", "docs"]) == 2
    assert "--continue reads the same documents again: leave out 'docs'" in capsys.readouterr().err
    assert main(["ask", "--continue", "--each", "And which lamps?"]) == 2
    assert "--continue" in capsys.readouterr().err
    assert main(["ask", "--continue"]) == 2
    assert "what is the question?" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", (folder / "a.txt").open())
    assert main(["ask", "Which facts?", "-"]) == 0
    assert main(["ask", "--continue", "And which lamps?"]) == 4
    assert "stdin" in capsys.readouterr().err


def test_another_model_is_said(serve: Serve, server: Server, folder: Path, capsys: Capture) -> None:
    assert main([*FIRST]) == 0
    other = serve(listed=[{"id": "other-3b"}]).base_url
    capsys.readouterr()
    assert main(["ask", "--continue", "And which lamps?", "--base-url", other]) == 0
    assert "the last read was with" in capsys.readouterr().err
