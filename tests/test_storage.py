"""Logs that survive crashes, other processes and flipped bits; writes that are whole or not there."""

from __future__ import annotations

import io
import os
import random
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.errors import JournalError, SettingsError
from memagent.storage import Log, read_log, write_in_place, write_whole

LINES: list[dict[str, Any]] = [{"type": "header"}, {"text": "é 漢 \ud800 \u2028"}, {"n": [1, None, 2.5]}]


def written(path: Path, lines: list[dict[str, Any]] = LINES) -> bytes:
    with Log(path) as log:
        for line in lines:
            log.append(line)
    return path.read_bytes()


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    written(tmp_path / "log")
    assert list(read_log(tmp_path / "log")) == LINES
    with Log(tmp_path / "log") as log:
        entries = list(log.lines())
        assert [line for line, _ in entries] == LINES
        assert [log.at(offset) for _, offset in entries] == LINES
        log.append({"more": 1})
    assert list(read_log(tmp_path / "log")) == [*LINES, {"more": 1}]


def test_a_torn_end_is_left_out_and_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = written(path)
    ends = [index + 1 for index, byte in enumerate(whole) if byte == 10]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete_lines = LINES[: sum(end <= cut for end in ends)]
        assert list(read_log(path)) == complete_lines
        with Log(path) as log:
            assert [line for line, _ in log.lines()] == complete_lines
            log.append({"next": cut})
        assert list(read_log(path)) == [*complete_lines, {"next": cut}]


def test_a_line_that_is_being_written_is_a_torn_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning is in sight at one moment, its rest a moment later."""
    whole = written(tmp_path / "log")
    second = whole.index(b"\n") + 1

    class Growing(io.BytesIO):
        seen = False

        def readline(self, size: int | None = -1) -> bytes:
            half = self.tell() == second and not self.seen
            self.seen |= half
            return super().readline(5 if half else size)

    monkeypatch.setattr(Path, "open", lambda *_: Growing(whole))
    assert list(read_log(tmp_path / "log")) == LINES[:1]


def test_no_flipped_bit_changes_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [{"number": number, "text": "word " * number} for number in range(20)]
    whole = written(path, lines)
    source = random.Random(0)
    for _ in range(1500):
        damaged = bytearray(whole)
        position = source.randrange(len(whole))
        damaged[position] ^= 1 << source.randrange(8)
        path.write_bytes(damaged)
        try:
            result = list(read_log(path))
        except SettingsError:
            continue
        assert result == lines[:-1], "only the last line may be taken for a torn one"


def test_two_processes_do_not_share_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log(path) as log:
        log.append({"mine": 1})
        with pytest.raises(JournalError, match="in use by another process"):
            Log(path, JournalError)
        other = f"from pathlib import Path; from memagent.storage import Log; Log(Path({str(path)!r}))"
        process = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
        assert "in use by another process" in process.stderr
    Log(path).close()


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: log.append({"n": number, "text": "x" * 500}), range(100)))
    assert sorted(line["n"] for line in read_log(tmp_path / "log")) == list(range(100))


def test_a_log_is_private(tmp_path: Path) -> None:
    written(tmp_path / "new" / "log")
    assert stat.S_IMODE((tmp_path / "new" / "log").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_a_log_that_is_deleted_meanwhile_is_an_error(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append({"a": 1})
        (tmp_path / "log").unlink()
        with pytest.raises(SettingsError, match="was deleted while it was in use"):
            log.append({"b": 1})


@pytest.mark.parametrize("content", [b"Dear diary", b"Dear diary,\n", b"{}\n", b"\0\xff", b'{"a": 1}\n'])
def test_a_file_that_is_not_a_log_is_named_and_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"mine\.txt, line 1: not written by memagent"):
        list(read_log(path))
    with Log(path) as log, pytest.raises(SettingsError, match="line 1"):
        list(log.lines())
    assert path.read_bytes() == content


@pytest.mark.parametrize("device", ["/dev/full", "/dev/zero", "/dev/null"])
def test_a_device_is_refused(device: str) -> None:
    with pytest.raises(SettingsError, match=f"{device} is not a regular file"):
        Log(Path(device))


def test_a_cut_drops_what_is_behind(tmp_path: Path) -> None:
    written(tmp_path / "log")
    with Log(tmp_path / "log") as log:
        offset = [offset for _, offset in log.lines()][1]
        log.cut(offset)
        log.append({"again": 1})
    assert list(read_log(tmp_path / "log")) == [LINES[0], {"again": 1}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(lines=st.lists(st.dictionaries(st.text(min_size=1), JSON, min_size=1, max_size=4), max_size=4))
def test_any_object_survives(tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]]) -> None:
    path = tmp_path_factory.mktemp("any") / "log"
    written(path, lines)
    assert list(read_log(path)) == lines


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "before")

    def fail() -> None:
        with write_in_place(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]
    write_whole(path, b"after")
    assert path.read_bytes() == b"after"


def test_folders_are_moved_whole(tmp_path: Path) -> None:
    with write_in_place(tmp_path / "folder") as temporary:
        (temporary / "deep").mkdir(parents=True)
        (temporary / "deep" / "file").write_text("x")
    assert (tmp_path / "folder" / "deep" / "file").read_text() == "x"
