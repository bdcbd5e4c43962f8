"""`memagent text`: what a model is shown of documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from memagent.cli import main


def test_it_prints_the_text_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.html").write_text("<h1>Ferry</h1><p hidden>no</p><img alt='a map'>")
    assert main(["text", str(tmp_path / "a.html")]) == 0
    assert capsys.readouterr().out == "# Ferry\n\n![a map]\n"


def test_it_prints_where_chunks_begin_and_what_is_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("name,left\n" + "".join(f"row {number},7\n" for number in range(9)))
    assert main(["text", "--chunks", "--chunk-tokens", "30", str(path)]) == 0
    first, second, *_ = capsys.readouterr().out.split("=== chunk ")[1:]
    assert first.startswith(f"1: {path}, characters 0 to ")
    assert second.startswith(f"2: {path}, characters ")
    assert second.split(" tokens ===\n")[1].startswith("name,left\nrow ")


def test_it_says_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_bytes(b"one caf\xc3\xa9" * 20 + b"\xff")
    (tmp_path / "b.bin").write_bytes(b"\0\1\2" * 50)
    assert main(["text", "--chunks", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "one" in printed.out
    assert "left out: " in printed.err and "b.bin" in printed.err
    assert "a.txt: 1 characters could not be decoded" in printed.err
    assert main(["text", str(tmp_path / "c.txt")]) == 4


def test_it_names_the_files_if_there_are_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "10.txt").write_text("ten\n")
    (tmp_path / "2.txt").write_text("two")
    assert main(["text", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"=== {tmp_path}/2.txt ===\ntwo\n=== {tmp_path}/10.txt ===\nten\n"
    assert main(["text", str(tmp_path / "2.txt")]) == 0
    assert capsys.readouterr().out == "two"
