"""The pipe for Open WebUI: what it emits and answers, with a stand-in for Open WebUI's files."""

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

httpx2 = pytest.importorskip("httpx2")
fastapi = pytest.importorskip("fastapi")

QUESTION = "What are all the facts?"
FILLER = "The sea was calm and the wind was low on that day. " * 20
NOTE = "The captain is called Ahab."
REPORT = f"{FILLER}\n\n{NOTE}\n\n{FILLER}\n\n{FILLER}"
TOKEN = "Bearer the-user"
INTEGRATIONS = Path(__file__).parents[2] / "integrations"


def open_webui(files: dict[str, bytes]) -> Any:
    """A request as a pipe gets it: its app gives files out to the user alone."""
    app = fastapi.FastAPI()

    @app.get("/api/v1/files/{id}/content")
    def content(id: str, request: fastapi.Request) -> fastapi.Response:
        known = request.headers.get("authorization") == TOKEN and id in files
        return fastapi.Response(files[id]) if known else fastapi.Response(status_code=404)

    return SimpleNamespace(app=app, headers={"authorization": TOKEN, "host": "localhost:3000"})


def attached(id: str, name: str, kind: str = "file") -> dict[str, Any]:
    return {"type": kind, "id": id, "name": name, "url": id, "status": "uploaded"}


def reply(messages: Any) -> str:
    """Notes the captain's name where it is told, and adds to it what no document says."""
    prompt = messages[-1]["content"]
    if "retrieved" in prompt:
        return "was asked about passages"
    if "title" in prompt:
        return "A calm sea"
    return f"{NOTE} He likes pears." if NOTE in prompt else "UNCHANGED"


@pytest.fixture
def pipe(serving: Callable[..., str]) -> Any:
    """A pipe at a server of ours."""
    pipe = made_pipe()
    pipe.valves.base_url = serving(reply, "--workflow", "gated")
    return pipe


def stored(pipe: Any) -> list[Any]:
    """The files that the server has."""
    files: list[Any] = httpx2.get(f"{pipe.valves.base_url}/files", trust_env=False).json()["data"]
    return files


def made_pipe() -> Any:
    """The pipe, loaded as Open WebUI does: a file, and no package."""
    spec = importlib.util.spec_from_file_location("function_memagent", INTEGRATIONS / "open_webui.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Pipe()


def ask(pipe: Any, content: str = QUESTION, **params: Any) -> tuple[str, list[Any]]:
    """The answer to a chat, and the events that were emitted."""
    events: list[Any] = []

    async def emit(event: dict[str, Any]) -> None:
        events.append(event)

    body = {"model": "memagent", "stream": True, "messages": [{"role": "user", "content": content}]}
    return asyncio.run(pipe.pipe(body, __event_emitter__=emit, **params)), events


def test_a_file_is_read_whole_with_its_progress_and_sources(pipe: Any) -> None:
    request = open_webui({"f1": REPORT.encode()})
    answer, events = ask(
        pipe,
        f"<context>passages that were retrieved</context> {QUESTION}",
        __files__=[attached("f1", "log.txt")],
        __metadata__={"base_user_prompt": QUESTION},
        __request__=request,
    )
    assert answer == f"{NOTE} [1] He likes pears."
    lines = [event["data"]["description"] for event in events if event["type"] == "status"]
    assert lines[0] == "Sending log.txt" and sum(line.startswith("Read chunk") for line in lines) > 1
    assert [event["data"]["done"] for event in events if event["type"] == "status"] == [
        *[False] * (len(lines) - 1),
        True,
    ]
    (source,) = [event["data"] for event in events if event["type"] == "source"]
    assert source["source"] == {"name": "log.txt"} and source["document"] == [NOTE]
    start = REPORT.index(NOTE)
    location = f"log.txt#char={start},{start + len(NOTE)}"
    assert source["metadata"] == [{"source": location, "name": "log.txt"}]
    assert stored(pipe) == []


def test_the_citation_of_a_nearest_passage_says_that_it_is_one(serving: Callable[..., str]) -> None:
    pipe = made_pipe()
    pipe.valves.base_url = serving(lambda _: "Ahab is their captain.", "--workflow", "full")
    request = open_webui({"f1": f"{FILLER[:200]}\n\n{NOTE}\n".encode()})
    answer, events = ask(pipe, __files__=[attached("f1", "log.txt")], __request__=request)
    assert answer == "Ahab is their captain. [1]"
    (source,) = [event["data"] for event in events if event["type"] == "source"]
    assert source["source"] == {"name": "log.txt (nearest passage, other words)"}
    assert source["document"] == [NOTE]


def test_tasks_and_chats_without_files_go_through(pipe: Any) -> None:
    files = [attached("f1", "log.txt")]
    answer, events = ask(pipe, "Write a title.", __files__=files, __task__="title_generation")
    assert (answer, events) == ("A calm sea", [])
    assert ask(pipe, "Write a title.", __files__=[])[0] == "A calm sea"


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            attached("k1", "Handbooks", "collection"),
            "'Handbooks' is of type 'collection': only files are read",
        ),
        (attached("f2", "other.txt"), r"does not give out 'other.txt' \(status 404\)"),
    ],
)
def test_what_cannot_be_read_is_an_error(pipe: Any, item: Any, message: str) -> None:
    files = [attached("f1", "log.txt"), item]
    with pytest.raises(RuntimeError, match=message):
        ask(pipe, __files__=files, __request__=open_webui({"f1": REPORT.encode()}))
    assert stored(pipe) == []


def test_errors_of_the_server_are_reported(pipe: Any) -> None:
    request = open_webui({"f1": b"\x00\x01"})
    with pytest.raises(RuntimeError, match=r"log\.zip|file"):
        ask(pipe, __files__=[attached("f1", "log.zip")], __request__=request)
    pipe.valves.base_url = "http://127.0.0.1:9/v1"
    with pytest.raises(RuntimeError, match="start memagent serve, or correct"):
        ask(pipe)
