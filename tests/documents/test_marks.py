"""Marks: which documents and installations share one, and the secret that they follow from."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from memagent import text_document
from memagent.documents.marks import mark_of
from memagent.settings import user_data_path


def test_a_mark_follows_from_the_document_and_the_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, again, other = (
        text_document("one").mark,
        text_document("one", "named").mark,
        text_document("two").mark,
    )
    assert one == again != other
    assert re.fullmatch("[a-z]{14}", one)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert text_document("one").mark not in (one, other)


def test_an_example_has_the_same_mark_everywhere() -> None:
    """So that training and evaluation can be repeated on another machine: change it knowingly."""
    assert text_document("one", is_example=True).mark == "egjwdulzhhiwjp"
    assert not user_data_path().joinpath("secret").exists()


@pytest.mark.slow
def test_the_secret_is_made_once_and_private() -> None:
    """By whichever of several processes comes first, also after a crash that left it empty."""
    path = user_data_path() / "secret"
    path.parent.mkdir(parents=True)
    path.touch(0o600)
    code = "from memagent import text_document; print(text_document('one').mark)"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    marks = {process.communicate()[0].strip() for process in processes}
    assert marks == {text_document("one").mark}
    assert len(path.read_bytes()) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["secret"]


def test_where_none_can_be_kept_a_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/nowhere")
    assert text_document("one").mark == text_document("one").mark != mark_of("one", b"")
