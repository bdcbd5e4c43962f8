"""Reads that go on without their client."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from files import office
from function_engine import FunctionEngine, HeldEngine
from memagent.engines import ScriptedEngine
from memagent.errors import EngineError, JournalError, SettingsError, StoreError
from memagent.reading.journal import read_journal
from memagent.reading.lines import Answer
from memagent.reading.read import NOT_FOUND
from memagent.server import jobs
from memagent.server.errors import api_error
from memagent.server.events import read_whole_lines
from memagent.server.limits import Keys, Limits
from memagent.server.store import Store
from memagent.settings import ReadSettings
from memagent.storage import lock
from served.reads import QUESTION, events, parse_events, start
from server import facts_document

KEY, OTHER = "k" * 32, "o" * 32


def test_a_read_tells_its_conversations_and_its_result(serving: Any) -> None:
    with serving().client() as client:
        read = start(client)
        stream = events(client, read)
        result = client.get(f"/v1/reads/{read}/result").json()
        whole = client.get(f"/v1/reads/{read}").json()
    conversations = [(data, event_id) for name, data, event_id in stream if name == "conversation"]
    assert [event_id for _, event_id in conversations] == [str(n) for n in range(1, len(conversations) + 1)]
    assert len(conversations) == result["calls"] == whole["progress"]["calls"] > 3
    assert [data["kind"] for data, _ in conversations] == ["update"] * (result["calls"] - 1) + ["answer"]
    assert conversations[-1][0]["memory"] == result["memory"]
    assert stream[-1] == ("end", {"state": "done"}, None)
    assert "FACT-11" in result["answer"] and "trace" not in result
    assert whole["state"] == "done" and whole["result"] == result


def test_a_read_that_counts_has_its_table(serving: Any) -> None:
    rows = [{"who": "Bo", "amount": "5 EUR"}]
    plan = (
        'row = "one payment"\nsql = "SELECT SUM(amount) FROM rows"\n'
        'fields = [{name = "who"}, {name = "amount", type = "money"}]'
    )
    with serving(ScriptedEngine(lambda messages: json.dumps(rows))).client() as client:
        read = start(client, document="Bo got 5 EUR from us.", workflow="tally", plan=plan)
        events(client, read)
        result = client.get(f"/v1/reads/{read}").json()["result"]
    assert result["answer"].startswith("In EUR: 5\n") and result["table"]["rows"][0]["values"]["who"] == "Bo"


def test_a_read_that_noted_nothing_says_so(serving: Any) -> None:
    with serving(ScriptedEngine(lambda messages: "UNCHANGED", window_tokens=2000)).client() as client:
        read = start(client, workflow="gated")
        stream = events(client, read)
        result = client.get(f"/v1/reads/{read}/result").json()
    assert (result["found"], result["answer"], result["memory"]) == (False, NOT_FOUND, "")
    kinds = [data["kind"] for name, data, _ in stream if name == "conversation"]
    assert set(kinds) == {"update"} and stream[-1] == ("end", {"state": "done"}, None)


def test_reads_outlast_a_disk_that_is_full(serving: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(jobs, "_PAUSE_SECONDS", 0.01)
    refused = []

    def refusing(change: Any) -> Any:
        def refuses_once(self: Store, *values: Any, **options: Any) -> Any:
            if change.__name__ not in refused:
                refused.append(change.__name__)
                raise StoreError("database or disk is full")
            return change(self, *values, **options)

        return refuses_once

    for name in ("claim", "end"):
        monkeypatch.setattr(Store, name, refusing(getattr(Store, name)))
    with serving().client() as client:
        assert events(client, start(client))[-1] == ("end", {"state": "done"}, None)
    assert refused == ["claim", "end"]


def test_uploads_that_do_not_fit_the_disk_are_refused(serving: Any) -> None:
    text = "x y " * 125_000
    data = {"filename": "a.txt", "file_data": base64.b64encode(text.encode()).decode()}
    parts = [{"type": "file", "file": data}, {"type": "text", "text": QUESTION}]
    chat = {"model": "memagent", "messages": [{"role": "user", "content": parts}]}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with serving().client() as client:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        try:
            replies = [
                client.post("/v1/files", files={"file": ("a.txt", text.encode())}),
                client.post("/v1/files", files={"file": ("a.txt", text.encode() * 6)}),  # does not fit memory
                client.post("/v1/reads", json={"problem": QUESTION, "document": text}),
                client.post("/v1/chat/completions", json=chat),
                client.post("/v1/chat/completions", json=chat | {"stream": True}),
            ]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    for reply in replies:
        assert (reply.status_code, reply.json()["error"]["code"]) == (507, "not_stored")
        assert "the server cannot store this: File too large" in reply.json()["error"]["message"]


def test_half_a_surrogate_pair_is_a_bad_request(serving: Any) -> None:
    with serving().client() as client:
        for body in (b'{"problem": "What?", "files": ["\\ud800"]}', b'{"problem": "What?", "\\ud800": 1}'):
            reply = client.post("/v1/reads", content=body, headers={"Content-Type": "application/json"})
            assert reply.status_code == 400, reply.text


def test_events_continue_after_the_last_one_seen(serving: Any) -> None:
    with serving().client() as client:
        read = start(client)
        whole = [event for event in events(client, read) if event[0] != "progress"]
        rest = events(client, read, headers={"Last-Event-ID": "2"})
        assert rest == whole[2:]
        assert events(client, read, params={"after": 2}) == rest
        assert events(client, read, headers={"Last-Event-ID": "999"}) == [("end", {"state": "done"}, None)]


def held(engine: ScriptedEngine, go: threading.Event) -> FunctionEngine:
    """An engine each of whose calls waits until it may go on."""

    async def wait(_: str) -> None:
        while not go.is_set():  # noqa: ASYNC110 another thread sets it
            await asyncio.sleep(0.005)

    return FunctionEngine(wait, engine, calls=2)


def test_live_events_are_those_of_the_record(serving: Any, facts: Any) -> None:
    go = threading.Event()
    engine = held(facts(), go)
    with serving(engine, limits=Limits(keep_alive_seconds=0.05)).client() as client:
        read = start(client)
        path = f"/v1/reads/{read}/events"
        with client.stream("GET", path) as reply, client.stream("GET", f"{path}?after=2") as later:
            lines, rest = reply.iter_lines(), later.iter_lines()
            first, first_of_rest = next(lines), next(rest)
            go.set()
            live, live_rest = parse_events([first, *lines]), parse_events([first_of_rest, *rest])
        recorded = events(client, read)
    assert live[0][0] == "progress"  # it says something while there is nothing to say
    assert [event for event in live if event[0] != "progress"] == recorded
    assert [event for event in live_rest if event[0] != "progress"] == recorded[2:]


def test_a_read_gives_its_text_and_its_journal(serving: Any, tmp_path: Path) -> None:
    with serving().client() as client:
        file = client.post("/v1/files", files={"file": ("b.txt", "Behind it: é 𝒳.".encode())}).json()["id"]
        read = start(client, files=[file])
        stream = events(client, read)
        text = client.get(f"/v1/reads/{read}/text").text
        journal = client.get(f"/v1/reads/{read}/journal")
        assert client.get(f"/v1/reads/{read}").json()["workflow"] == "overwrite"
        for name in ("text", "journal"):
            assert client.get(f"/v1/reads/read-none/{name}").status_code == 404
    assert text == facts_document(12) + "Behind it: é 𝒳."
    spans = [data["span"] for name, data, _ in stream if name == "conversation" and data["span"]]
    assert [spans[0][0], spans[-1][1]] == [0, len(text)]
    (tmp_path / "j.jsonl").write_bytes(journal.content)
    lines = list(read_journal(tmp_path / "j.jsonl"))
    assert isinstance(lines[-1], Answer) and str(tmp_path) not in journal.text


def test_a_growing_journal_is_read_up_to_where_it_was_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"one\ntwo\ntorn")
    lines = read_whole_lines(path)
    beginning = [next(lines)]
    with path.open("ab") as file:
        file.write(b" no more\nthree\n")
    assert [*beginning, *lines] == [b"one\n", b"two\n"]


def test_a_journal_that_grows_can_be_fetched(serving: Any) -> None:
    async def talk(_: str) -> str:
        await asyncio.sleep(0.002)
        return f"memory {len(engine.prompts)} " + "word " * 700

    values = {"memory_tokens": 1000, "answer_tokens": 1000, "chunk_tokens": 50}
    engine = FunctionEngine(talk, window_tokens=100_000)
    with serving(engine).client() as client:
        read = start(client, document="some words stand here " * 5000, **values)
        with client.stream("GET", f"/v1/reads/{read}/events") as reply:
            assert "id: 3" in reply.iter_lines()
        sizes: list[int] = []
        while client.get(f"/v1/reads/{read}").json()["state"] == "running":
            journal = client.get(f"/v1/reads/{read}/journal")
            assert journal.status_code == 200 and journal.content.endswith(b"\n")
            sizes.append(len(journal.content))
    assert sizes == sorted(sizes) and len(set(sizes)) > 3


@office
def test_a_text_that_cannot_be_converted_is_refused(serving: Any) -> None:
    with serving().client() as client:
        file = client.post("/v1/files", files={"file": ("a.pdf", b"%PDF-1.4 broken")}).json()["id"]
        read = start(client, files=[file], document=None)
        reply = client.get(f"/v1/reads/{read}/text")
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_document")
        assert "a.pdf cannot be converted" in reply.json()["error"]["message"]


@office
def test_the_text_up_to_a_file_that_cannot_be_converted_ends_with_the_reason(serving: Any) -> None:
    with serving().client() as client:
        pdf = client.post("/v1/files", files={"file": ("a.pdf", b"%PDF-1.4 broken")}).json()["id"]
        read = start(client, files=[pdf])
        reply = client.get(f"/v1/reads/{read}/text")
        events(client, read)
        message = client.get(f"/v1/reads/{read}").json()["error"]["message"]
    assert "a.pdf cannot be converted" in message
    assert (reply.status_code, reply.text) == (
        200,
        f"{facts_document(12)}\n\n[The text ends here: {message}]\n",
    )


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.html.gz", b"<script>var a = 1;</script><p>Ryder did it.</p>", "Ryder did it.\n"),
        ("a.jsonl.gz", b'{"text": "Ryder did it.", "other": 1}\n', "Ryder did it.\n\n"),
        ("a.txt.gz", b"<p>Ryder did it.</p>", "<p>Ryder did it.</p>"),
    ],
)
def test_a_packed_file_is_read_in_its_own_format(name: str, content: bytes, text: str, serving: Any) -> None:
    with serving().client() as client:
        file = client.post("/v1/files", files={"file": (name, gzip.compress(content))}).json()["id"]
        read = start(client, files=[file], document=None)
        assert client.get(f"/v1/reads/{read}/text").text == text


def interrupted(served: Any) -> str:
    """Start a read, and end the server after three of its calls; the read's id."""
    with served.client() as client:
        read = start(client)
        with client.stream("GET", f"/v1/reads/{read}/events") as reply:
            assert "id: 3" in reply.iter_lines()
    served.close()
    return read


def test_a_read_resumes_after_a_clean_stop(serving: Any, facts: Any) -> None:
    engine, again = HeldEngine(facts(), free=3), facts()
    served = serving(engine)
    read = interrupted(served)
    with serving(again).client() as client:
        assert events(client, read)[-1] == ("end", {"state": "done"}, None)
        result = client.get(f"/v1/reads/{read}/result").json()
    assert "FACT-11" in result["answer"]
    assert len(again.prompts) == result["calls"] - 3, "what was answered is not asked again"


def test_a_stop_says_nothing_of_those_who_listen(
    serving: Any, facts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    served = serving(HeldEngine(facts(), free=3), limits=Limits(stop_seconds=1))
    with served.client() as client:
        read = start(client)
        with client.stream("GET", f"/v1/reads/{read}/events") as reply:
            lines = reply.iter_lines()
            assert "id: 3" in lines
            served.close()
    assert not [record for record in caplog.records if record.exc_info]


def test_a_journal_that_cannot_be_continued_is_put_aside(serving: Any, facts: Any) -> None:
    served = serving(HeldEngine(facts(), free=3))
    read = interrupted(served)
    again, smaller = (
        facts(),
        ReadSettings(
            workflow="overwrite", problem_tokens=60, chunk_tokens=90, memory_tokens=300, answer_tokens=300
        ),
    )
    with serving(again, settings=smaller).client() as client:
        assert events(client, read)[-1] == ("end", {"state": "done"}, None)
        result = client.get(f"/v1/reads/{read}/result").json()
    assert "FACT-11" in result["answer"] and len(again.prompts) == result["calls"]


def test_a_journal_that_cannot_be_opened_now_is_continued_later(serving: Any, facts: Any) -> None:
    served = serving(HeldEngine(facts(), free=3))
    read = interrupted(served)
    again = facts()
    with (served.store.folder / "reads" / read / "journal.jsonl").open() as journal:
        lock(journal)
        with serving(again).client() as client:
            assert events(client, read)[-1][1] == {"state": "failed"}
            assert "in use by another" in client.get(f"/v1/reads/{read}").json()["error"]["message"]
            journal.close()
            client.post(f"/v1/reads/{read}/resume")
            assert events(client, read)[-1][1] == {"state": "done"}
            assert len(again.prompts) == client.get(f"/v1/reads/{read}/result").json()["calls"] - 3


def test_a_read_is_cancelled_and_resumed(serving: Any, facts: Any) -> None:
    go = threading.Event()
    engine = held(facts(), go)
    served = serving(engine)
    with served.client() as client:
        first, second, third = (start(client, problem=f"{QUESTION} {n}") for n in range(3))
        for read in (third, first):  # one waits, the other runs
            assert client.post(f"/v1/reads/{read}/cancel").json()["state"] == "cancelled"
            assert events(client, read)[-1] == ("end", {"state": "cancelled"}, None)
            reply = client.get(f"/v1/reads/{read}/result")
            assert (reply.status_code, reply.json()["error"]["code"]) == (409, "no_result")
        go.set()
        assert client.post(f"/v1/reads/{first}/resume").json()["state"] in ("queued", "running")
        assert events(client, first)[-1] == events(client, second)[-1] == ("end", {"state": "done"}, None)
        assert client.post(f"/v1/reads/{second}/resume").status_code == 409
        states = {entry["id"]: entry["state"] for entry in client.get("/v1/reads").json()["data"]}
    assert states == {first: "done", second: "done", third: "cancelled"}


def test_a_failed_read_is_reported_and_continues_from_where_it_failed(serving: Any, facts: Any) -> None:
    fails = [True]

    def fail(_: str) -> None:
        if len(engine.prompts) == 4 and fails[0]:
            raise EngineError("out of order")

    engine = FunctionEngine(fail, facts())
    with serving(engine).client() as client:
        read = start(client)
        assert events(client, read)[-1][1] == {"state": "failed"}
        error = client.get(f"/v1/reads/{read}").json()["error"]
        assert error["code"] == "engine_failed" and "out of order" in error["message"]
        fails[0] = False
        client.post(f"/v1/reads/{read}/resume")
        assert events(client, read)[-1][1] == {"state": "done"}
        progress = client.get(f"/v1/reads/{read}").json()["progress"]
        counted = client.get("/metrics").text
    assert progress["recalled"] == 3
    assert f"memagent_conversations_total {progress['calls']}.0" in counted, "none twice"
    assert len(engine.prompts) == progress["calls"] + 1  # the one that failed


def test_files_are_read_and_stay_readable_when_they_are_deleted(serving: Any, facts: Any) -> None:
    go = threading.Event()
    engine = held(facts(), go)
    with serving(engine).client() as client:
        content = facts_document(9).encode()
        file = client.post("/v1/files", files={"file": ("notes.txt", content)}).json()["id"]
        read = start(client, files=[file], document="FACT-77: first.")
        assert client.delete(f"/v1/files/{file}").json()["deleted"]
        go.set()
        events(client, read)
        whole = client.get(f"/v1/reads/{read}").json()
    assert whole["documents"] == ["document", "notes.txt"]
    assert "FACT-77: first" in whole["result"]["answer"] and "FACT-8" in whole["result"]["answer"]


def test_the_documents_of_a_read_are_read_again_without_being_sent(serving: Any) -> None:
    html = b"<p>Behind it: a <b>page</b>.</p>"
    with serving(ScriptedEngine(lambda _: "UNCHANGED")).client() as client:
        file = client.post("/v1/files", files={"file": ("b.html", html)}).json()["id"]
        first = start(client, document="<p>A text.</p>", files=[file])
        events(client, first)
        text = client.get(f"/v1/reads/{first}/text").text
        assert client.delete(f"/v1/files/{file}").status_code == 200
        again = start(client, document=None, files=[first], problem="What else?")
        assert client.delete(f"/v1/reads/{first}").status_code == 200
        assert events(client, again)[-1][1] == {"state": "done"}
        assert client.get(f"/v1/reads/{again}").json()["documents"] == ["document", "b.html"]
        assert client.get(f"/v1/reads/{again}/text").text == text
        gone = client.post("/v1/reads", json={"problem": "What?", "files": [first]})
        assert gone.json()["error"]["code"] == "file_not_found"


def test_the_name_of_a_source_means_one_file(serving: Any) -> None:
    engine = ScriptedEngine(lambda _: "The hat is red. The goose is white.", window_tokens=2000)
    texts = ("The hat is red.", "The goose is white.")
    with serving(engine).client() as client:
        uploads = [("notes.txt", f"{text} {'Filler. ' * 200}".encode()) for text in texts]
        files = [client.post("/v1/files", files={"file": upload}).json()["id"] for upload in uploads]
        read = start(client, document=None, files=files, cite=True)
        events(client, read)
        result = client.get(f"/v1/reads/{read}/result").json()
    source_files = {statement["text"]: statement["source"]["file"] for statement in result["statements"]}
    assert source_files == dict(zip(texts, ["notes.txt", "(2) notes.txt"], strict=True))
    assert result["sources"] == ["notes.txt", "(2) notes.txt"]


def test_a_deleted_read_leaves_nothing(serving: Any) -> None:
    served = serving()
    with served.client() as client:
        read = start(client)
        events(client, read)
        assert (served.store.folder / "reads" / read).exists()
        assert client.delete(f"/v1/reads/{read}").json()["deleted"]
        assert client.get(f"/v1/reads/{read}").status_code == 404
    assert not (served.store.folder / "reads" / read).exists()


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"document": None}, "no_document"),
        ({"problem": "  "}, "no_problem"),
        ({"files": ["file-none"]}, "file_not_found"),
        ({"workflow": 3}, "invalid_request"),
        ({"templates": "/etc/passwd"}, "invalid_request"),
        ({"chunk_tokens": 0}, "invalid_request"),
        ({"document": "\ud800"}, "invalid_request"),
    ],
)
def test_bad_reads_are_refused(values: dict[str, Any], code: str, serving: Any) -> None:
    with serving().client() as client:
        body = json.dumps({"problem": QUESTION, "document": "text", **values})
        reply = client.post("/v1/reads", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code in (400, 404)
    assert reply.json()["error"]["code"] == code


def test_a_read_that_cannot_be_done_says_so_in_its_state(serving: Any) -> None:
    with serving().client() as client:
        for values, code in (
            ({"workflow": "skim"}, "invalid_settings"),
            ({"memory_tokens": 90_000}, "invalid_settings"),
            ({"problem": "word " * 100}, "invalid_settings"),
        ):
            reply = client.post("/v1/reads", json={"problem": QUESTION, "document": "some text"} | values)
            if reply.status_code == 201:
                read = reply.json()["id"]
                events(client, read)
                reply = client.get(f"/v1/reads/{read}")
            assert reply.json()["error"]["code"] == code


def test_a_memory_to_start_from_has_its_budget(serving: Any, facts: Any) -> None:
    engine = facts(window_tokens=4000)
    with serving(engine).client() as client:
        reply = client.post(
            "/v1/reads", json={"problem": QUESTION, "document": "text", "memory": "word " * 301}
        )
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_settings")
        assert "the memory has 301 tokens, but its budget is 300" in reply.json()["error"]["message"]
        assert not engine.prompts
        assert events(client, start(client, memory="word " * 300))[-1][1] == {"state": "done"}


def test_each_key_sees_its_own(serving: Any, tmp_path: Path) -> None:
    from memagent.server.limits import read_keys

    (tmp_path / "keys").write_text(f"# ours\n{KEY}\n{OTHER}\n")
    served = serving(keys=read_keys(tmp_path / "keys"))
    mine, others = ({"Authorization": f"Bearer {key}"} for key in (KEY, OTHER))
    with served.client() as client:
        file = client.post("/v1/files", files={"file": ("a.txt", b"text")}, headers=mine).json()["id"]
        body = {"problem": QUESTION, "files": [file]}
        read = client.post("/v1/reads", json=body, headers=mine).json()["id"]
        for path in (f"/v1/files/{file}", f"/v1/files/{file}/content", f"/v1/reads/{read}",
                     f"/v1/reads/{read}/events", f"/v1/reads/{read}/result"):  # fmt: skip
            assert client.get(path, headers=others).status_code == 404
        assert client.post("/v1/reads", json=body, headers=others).status_code == 404
        assert client.post(f"/v1/reads/{read}/cancel", headers=others).status_code == 404
        stolen = {"problem": QUESTION, "files": [read]}
        assert client.post("/v1/reads", json=stolen, headers=others).status_code == 404
        assert client.delete(f"/v1/files/{file}", headers=others).status_code == 404
        assert client.get("/v1/files", headers=others).json()["data"] == []
        assert client.get("/v1/reads", headers=others).json()["data"] == []
        assert client.get(f"/v1/files/{file}", headers=mine).status_code == 200


def test_lists_come_in_pages(serving: Any) -> None:
    with serving().client() as client:
        ids = [client.post("/v1/files", files={"file": (f"{n}.txt", b"x")}).json()["id"] for n in range(5)]
        page = client.get("/v1/files", params={"limit": 2, "order": "asc"}).json()
        assert ([file["id"] for file in page["data"]], page["has_more"]) == (ids[:2], True)
        page = client.get("/v1/files", params={"limit": 9, "order": "asc", "after": ids[1]}).json()
        assert ([file["id"] for file in page["data"]], page["has_more"]) == (ids[2:], False)
        assert [file["id"] for file in client.get("/v1/files").json()["data"]] == ids[::-1]


def test_a_list_does_not_load_what_the_reads_have_found(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        job = store.begin_read("", None, {"problem": "Which?"}, [("a.txt", b"FACT-1: one")])
        store.end(job.id, "done", {"result": {"memory": "long " * 1000}})
        (read,) = store.reads("", 9, None, ascending=True)
        assert (read.state, read.outcome) == ("done", {})
        whole = store.read("", job.id)
        assert whole and whole.outcome["result"]["memory"]


def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    with Store(tmp_path / "data"), pytest.raises(SettingsError, match="in use by another server"):
        Store(tmp_path / "data")


def test_a_folder_with_files_of_others_is_refused_and_left_alone(tmp_path: Path) -> None:
    letter = tmp_path / "files" / "letters" / "letter.txt"
    letter.parent.mkdir(parents=True)
    letter.write_text("Dear Sir")
    with pytest.raises(SettingsError, match="not a server's: name a new or empty folder with `data`"):
        Store(tmp_path)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "files", letter.parent, letter]


def test_a_new_volume_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    with Store(tmp_path):
        pass


def test_what_is_kept_in_a_folder_that_is_open_to_others_is_for_its_user_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with Store(tmp_path) as store:
        store.begin_read("", None, {"problem": "Which?"}, [("a.txt", b"FACT-1: one")])
        assert (tmp_path / "server.sqlite-wal").exists()
        open_to_others = [path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o077]
    assert open_to_others == ["lock"]  # which is empty


def test_only_what_a_server_has_left_is_tidied_away(tmp_path: Path) -> None:
    with Store(tmp_path):
        pass
    names = ["files/mine", "reads/mine", "mine"]
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "text").touch()
    with Store(tmp_path):
        pass
    assert [name for name in names if (tmp_path / name / "text").exists()] == names


def test_a_stored_limit_is_kept(serving: Any) -> None:
    with serving(limits=Limits(stored_bytes=100), keys=Keys()).client() as client:
        assert client.post("/v1/files", files={"file": ("a.txt", b"x" * 101)}).status_code == 200
        assert client.post("/v1/files", files={"file": ("b.txt", b"x")}).status_code == 429
        assert client.post("/v1/reads", json={"problem": "Q", "document": "x"}).status_code == 429


def test_no_error_tells_a_client_the_folders_of_the_server() -> None:
    for kind in (JournalError, StoreError, EngineError):
        error = api_error(
            kind("/root/.cache/memagent/reads/read-1/journal.jsonl cannot be written: see http://a/b")
        )
        assert error.message == "journal.jsonl cannot be written: see http://a/b"
