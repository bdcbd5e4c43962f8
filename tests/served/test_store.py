"""What a server keeps: nothing of it is lost because its database, its folder or the clock has changed."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from function_engine import FunctionEngine
from memagent.errors import SettingsError, StoreError
from memagent.server.store import Store
from server import facts_document
from waiting import wait_for

CHAT = {
    "model": "memagent",
    "messages": [
        {"role": "user", "content": facts_document(12)},
        {"role": "user", "content": "Which facts?"},
    ],
    "memagent": {},
}
READ = {"problem": "Which facts?", "document": facts_document(12)}


def read_kept_files(folder: Path) -> dict[str, bytes]:
    """The content of all files that a server keeps for its clients, by the end of their paths."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name in ("content.txt", "0.md")]
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in files}


def filled(folder: Path) -> tuple[str, str]:
    """Keep a file and a read with a document; their ids."""
    with Store(folder) as store:
        file = store.add_file("", "a.txt", "user_data", io.BytesIO(b"one"))
        read = store.begin_read("", None, {"problem": "Which?"}, [("b.md", b"two")])
    return file.id, read.id


@pytest.mark.parametrize("damage", ["older", "empty"])
def test_what_the_database_lacks_stays_and_comes_back_with_it(damage: str, tmp_path: Path) -> None:
    data, database = tmp_path / "data", tmp_path / "data" / "server.sqlite"
    Store(data).close()
    older = database.read_bytes()
    file, read = filled(data)
    whole, before = database.read_bytes(), read_kept_files(data)
    assert set(before.values()) == {b"one", b"two"}

    database.write_bytes(older if damage == "older" else b"")
    with Store(data) as store:
        assert store.files("", 10, None, True) == []
        assert read_kept_files(data) == before
        assert (data / "files" / file).is_dir() and (data / "reads" / read).is_dir()

    database.write_bytes(whole)
    with Store(data) as store:
        assert store.path_of(store.file("", file)).read_bytes() == b"one"
        job = store.read("", read)
        assert job and store.document_of(job).sources


def test_a_log_of_the_database_that_is_gone_takes_no_file_with_it(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "killed"
    Store(data).close()
    with Store(data) as store:
        store.add_file("", "a.txt", "user_data", io.BytesIO(b"one"))
        shutil.copytree(data, other)  # as a kill leaves it
    (other / "server.sqlite-wal").unlink()
    (other / "server.sqlite-shm").unlink()
    with Store(other) as store:
        assert store.files("", 10, None, True) == []
        assert set(read_kept_files(other).values()) == {b"one"}


def test_what_cannot_be_recorded_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path) as store:
        content = io.BytesIO(b"one")
        monkeypatch.setattr(content, "read", lambda size: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.add_file("", "a.txt", "user_data", content)
        assert not list((tmp_path / "files").iterdir())


def stopping(engine: Any, change: Callable[[], object]) -> FunctionEngine:
    """Changes the folder during its second call."""

    def stop(_: str) -> None:
        if len(engine.prompts) == 1:
            change()

    return FunctionEngine(stop, engine, calls=1)


def delete(data: Path) -> None:
    """Delete the folder."""
    shutil.rmtree(data)


def replace(data: Path) -> None:
    """Put another server's folder in its place."""
    data.rename(data.with_name("moved"))
    Store(data).close()


def delete_log(data: Path) -> None:
    """Delete what the database has not yet written to its file."""
    (data / "server.sqlite-wal").unlink()


@pytest.mark.parametrize("change", [delete, replace, delete_log])
def test_reads_and_uploads_stop_when_the_folder_is_gone(
    change: Callable[[Path], None], serving: Any, facts: Any, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    engine = stopping(facts(), lambda: change(data))
    served = serving(engine, folder=data)
    with served.client() as client:
        stopped = client.post("/v1/chat/completions", json=CHAT)
        after = [
            client.post("/v1/chat/completions", json=CHAT),
            client.post("/v1/chat/completions", json={**CHAT, "stream": True}),
            client.post("/v1/files", files={"file": ("a.txt", b"one")}),
            client.post("/v1/reads", json=READ),
            client.get("/v1/reads"),
            client.get("/v1/files"),
            client.get("/v1/reads/read-1"),
            client.get("/v1/files/file-1/content"),
        ]
    assert stopped.status_code == 503, stopped.text
    for reply in after:
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_failed"), reply.text
        assert "deleted or replaced while it was in use" in reply.json()["error"]["message"]
    assert len(engine.prompts) == 2, "nothing more is paid for"
    served.close()
    with Store(data) as store:  # and what comes now is found
        store.add_file("", "a.txt", "user_data", io.BytesIO(b"one"))
    assert read_kept_files(data)


def test_a_read_in_the_background_stops_when_the_folder_is_gone(
    serving: Any, facts: Any, tmp_path: Path
) -> None:
    data, moved = tmp_path / "data", tmp_path / "moved"
    engine = stopping(facts(), lambda: data.rename(moved))
    served = serving(engine, folder=data)
    with served.client() as client:
        read = client.post("/v1/reads", json=READ).json()["id"]
        wait_for(moved.exists)
        wait_for(lambda: engine.busy == 0)
        assert client.get(f"/v1/reads/{read}").status_code == 503
        assert len(engine.prompts) == 2
    served.close()
    moved.rename(data)
    again = facts()
    with serving(again, folder=data).client() as client:
        with client.stream("GET", f"/v1/reads/{read}/events") as reply:
            list(reply.iter_lines())
        result = client.get(f"/v1/reads/{read}/result").json()
    assert "FACT-11" in result["answer"]
    assert len(again.prompts) == result["calls"] - 2


def damage_pages(database: Path) -> None:
    """Overwrite the pages of tables, which a server's start does not look at; indexes stay."""
    content = bytearray(database.read_bytes())
    for start in range(4096, len(content), 4096):
        page = content[start : start + 4096]
        if page[0] == 0x0D and (b"user_data" in page or b"Which?" in page):
            content[start : start + 4096] = b"\xff" * 4096
    database.write_bytes(content)


def test_a_damaged_database_is_reported(serving: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    file, read = filled(data)
    with Store(data) as store:
        store.end(read, "done")
    before = read_kept_files(data)
    damage_pages(data / "server.sqlite")
    with serving(folder=data).client() as client:
        replies = [
            client.get("/v1/reads"),
            client.get("/v1/files"),
            client.get(f"/v1/reads/{read}"),
            client.get(f"/v1/reads/{read}/events"),
            client.get(f"/v1/files/{file}/content"),
            client.post("/v1/files", files={"file": ("a.txt", b"three")}),
            client.post("/v1/reads", json=READ),
            client.delete(f"/v1/files/{file}"),
        ]
    for reply in replies:
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_failed"), reply.text
        assert "restore server.sqlite from a copy" in reply.json()["error"]["message"]
    assert read_kept_files(data) == before


def test_a_file_that_is_not_a_database_ends_the_start_with_advice(tmp_path: Path) -> None:
    filled(tmp_path)
    before = read_kept_files(tmp_path)
    (tmp_path / "server.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(SettingsError, match="cannot be used: file is not a database; restore it") as caught:
        Store(tmp_path)
    assert isinstance(caught.value, StoreError)
    assert read_kept_files(tmp_path) == before
