"""The folder of a server before reads had keys, as a kill left it (`data/`), is used and continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memagent.engines import ScriptedEngine
from server import facts_document

TEXT = facts_document(9)
DONE, RUNNING = "read-aa3c5283c221ec7c4be5ab3c", "read-53d7a0550d024ca8d112023e"
QUESTION = "What are all the facts?"
CHAT = {
    "model": "memagent",
    "messages": [{"role": "user", "content": TEXT}, {"role": "user", "content": QUESTION}],
    "memagent": {},
}


def test_its_reads_and_files_are_there_and_what_was_running_is_finished(
    restore: Any, serving: Any, facts: Any, tmp_path: Path
) -> None:
    data = tmp_path / "before"
    restore("served", data)
    (data / "reads" / DONE / "0.txt").write_text(TEXT)
    (data / "reads" / RUNNING / "0").write_text(TEXT)
    engine = facts()
    with serving(engine, folder=data).client() as client:
        with client.stream("GET", f"/v1/reads/{RUNNING}/events") as reply:
            assert '"state": "done"' in list(reply.iter_lines())[-2]
        reads = {it["id"]: it["state"] for it in client.get("/v1/reads").json()["data"]}
        results = [client.get(f"/v1/reads/{read}/result").json() for read in (DONE, RUNNING)]
        text = client.get(f"/v1/reads/{DONE}/text").text
        (file,) = client.get("/v1/files").json()["data"]
    assert reads == {DONE: "done", RUNNING: "done"}
    assert all("FACT-8" in it["answer"] for it in results)
    assert len(engine.prompts) == results[1]["calls"] - 2, "what was answered is not asked again"
    assert (file["filename"], text) == ("notes.txt", TEXT)


def test_an_interrupted_chat_is_continued(
    restore: Any, keys_in: Any, serving: Any, facts: Any, tmp_path: Path
) -> None:
    data, other = tmp_path / "before", tmp_path / "other"
    silent = ScriptedEngine([], window_tokens=2000, calls=8)
    with serving(silent, folder=other).client() as client:
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 502
    restore("served", data)
    (journal,) = (data / "chats").iterdir()
    # The key depends on all settings, and so on the version.
    journal.rename(journal.with_name(f"{keys_in(other)[QUESTION]}-00000000.jsonl"))
    engine = facts()
    with serving(engine, folder=data).client() as client:
        client.delete(f"/v1/reads/{RUNNING}")
        before = len(engine.prompts)
        reply = client.post("/v1/chat/completions", json=CHAT).json()
        calls = len(engine.prompts) - before
        client.post("/v1/chat/completions", json=CHAT)
        whole = len(engine.prompts) - before - calls
    assert "FACT-8" in reply["choices"][0]["message"]["content"]
    assert calls == whole - 2
    assert not list((data / "chats").iterdir())
