"""`memagent mcp`: its tools by the SDK's own client, in memory, over standard input, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from function_engine import HeldEngine
from memagent.cli import main
from memagent.engines import ScriptedEngine
from memagent.notebooks import Notebooks
from memagent.reading.read import NOT_FOUND
from memagent.server.documents import Folders
from memagent.server.gate import Metrics
from memagent.server.jobs import Jobs
from memagent.server.limits import Limits
from memagent.server.mcp import MAX_ROWS, Desk, create_http_app, create_mcp
from memagent.server.store import Store
from memagent.settings import ReadSettings
from memagent.types import Engine, Message
from server import Server, facts_document, read_facts

SETTINGS = ReadSettings(
    workflow="overwrite", problem_tokens=60, chunk_tokens=120, memory_tokens=300, answer_tokens=300
)
TOOLS = {
    "ask", "start_read", "read_status", "read_result", "cancel_read",
    "notes_list", "notes_new", "notes_add", "notes_ask", "notes_log",
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder that is open, and beside it what is not."""
    opened = tmp_path / "open"
    opened.mkdir()
    (opened / "facts.txt").write_text(facts_document(12))
    (opened / "short.txt").write_text("FACT-7: seven\n")
    (tmp_path / "secret.txt").write_text("FACT-1: secret\n")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "more.txt").write_text("FACT-2: secret\n")
    (opened / "link.txt").symlink_to(tmp_path / "secret.txt")
    (opened / "linked").symlink_to(tmp_path / "secrets")
    return tmp_path


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    """What some work comes to: what never ends has failed."""
    return asyncio.run(asyncio.wait_for(work, 120))


@asynccontextmanager
async def client_of(home: Path, engine: Engine, **limits: Any) -> AsyncIterator[Client]:
    with Store(home / "data", **limits) as store:
        jobs = Jobs(engine, SETTINGS, store, Metrics())
        desk = Desk(jobs, Folders([home / "open"]), Notebooks(home / "notebooks"), 0.01)
        async with jobs.work(), Client(create_mcp(desk)) as client:
            yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """What a tool returns."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """What a tool says that fails."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)


async def ended(client: Client, id: str) -> Any:
    while True:
        now = await call(client, "read_status", id=id)
        if now["state"] not in ("queued", "running"):
            return now
        await asyncio.sleep(0.01)


def test_asking_reports_progress_and_tells_sources(home: Path) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async def run() -> None:
        def reply(messages: tuple[Message, ...]) -> str:
            facts = read_facts([{"role": message.role, "content": message.content} for message in messages])
            return facts.replace("; ", "\n")

        async with client_of(home, ScriptedEngine(reply, window_tokens=2000)) as client:
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == TOOLS
            described = [tool.description or "" for tool in tools]
            assert not [
                description
                for description in described
                if description != description.strip() or "\n  " in description
            ]
            result = await client.call_tool(
                "ask", {"question": "Which facts?", "paths": ["facts.txt"]}, progress_callback=hear
            )
            content = result.structured_content
            assert content and content["answer"].startswith("FACT-1: ") and content["left_out"] == []
            assert [Path(file).name for file in content["files"]] == ["facts.txt"]
            text = (home / "open" / "facts.txt").read_text()
            sources = [statement["source"] for statement in content["statements"] if statement["source"]]
            assert sources
            for source in sources:
                assert text[source["start"] : source["end"]] == source["excerpt"]
            answer = json.loads(result.content[0].text)["answer"]  # for clients without structured results
            assert answer == content["answer"]

    finish(run())
    values = [progress for progress, _, _ in heard]
    assert values and values == sorted(set(values))


def test_a_read_resumes_by_itself_and_is_not_paid_for_twice(
    home: Path, facts: Callable[..., ScriptedEngine]
) -> None:
    question = {"question": "Which facts?", "paths": [str(home / "open" / "facts.txt")]}

    async def first() -> tuple[str, int]:
        engine = HeldEngine(facts(), free=3)
        async with client_of(home, engine) as client:
            read = await call(client, "start_read", **question)
            await engine.held.wait()
            now = await call(client, "read_status", id=read["id"])
            assert (now["state"], now["chunks"] > 2, "FACT" in now["memory"]) == ("running", True, True)
            assert "is running" in await refusal(client, "read_result", id=read["id"])
            assert (await call(client, "start_read", **question))["id"] == read["id"]
            cancelled = await call(client, "cancel_read", id=read["id"])
            assert cancelled["state"] == "cancelled"
            return read["id"], engine.paid

    async def second(id: str) -> int:
        """After a restart: it continues, and the next one who asks has the answer."""
        engine = HeldEngine(facts())
        async with client_of(home, engine) as client:
            assert (await call(client, "start_read", **question))["id"] == id
            assert (await ended(client, id))["state"] == "done"
            result = await call(client, "read_result", id=id)
            calls = engine.paid
            assert await call(client, "ask", **question) == result
            assert engine.paid == calls
            assert (await call(client, "start_read", question="How many?", paths=["facts.txt"]))["id"] != id
            return calls

    async def whole() -> int:
        engine = HeldEngine(facts())
        async with client_of(home / "whole", engine) as client:
            await call(client, "ask", **question)
        return engine.paid

    read_id, first_calls = finish(first())
    (home / "whole").mkdir()
    (home / "whole" / "open").symlink_to(home / "open")
    assert first_calls + finish(second(read_id)) == finish(whole())


def test_the_oldest_read_is_found_before_it_makes_room_for_others(
    home: Path, facts: Callable[..., ScriptedEngine]
) -> None:
    async def run() -> None:
        engine = facts()
        async with client_of(home, engine, max_reads=2) as client:
            results = [
                await call(client, "ask", question=f"Which? {n}", paths=["short.txt"]) for n in range(3)
            ]
            prompt_count = len(engine.prompts)
            assert await call(client, "ask", question="Which? 0", paths=["short.txt"]) == results[0]
            assert len(engine.prompts) == prompt_count
            await call(client, "ask", question="Which? 3", paths=["short.txt"])
            assert "there is no read" in await refusal(client, "read_result", id=results[0]["id"])
            assert await call(client, "read_result", id=results[1]["id"]) == results[1]

    finish(run())


def test_an_empty_memory_is_reported(home: Path, facts: Callable[..., ScriptedEngine]) -> None:
    async def run() -> None:
        async with client_of(home, ScriptedEngine(lambda messages: "(empty)", window_tokens=2000)) as client:
            result = await call(client, "ask", question="Which facts?", paths=["short.txt"])
            assert (result["found"], result["answer"], result["statements"]) == (False, NOT_FOUND, [])
            await call(client, "notes_new", name="diary", about="all facts")
            added = await call(client, "notes_add", name="diary", paths=["short.txt"])
            assert (added["versions"], added["known"]) == ([], [])
            assert [Path(path).name for path in added["unnoted"]] == ["short.txt"]
        async with client_of(home, facts()) as client:
            assert (await call(client, "ask", question="Which are they?", paths=["short.txt"]))["found"]
            added = await call(client, "notes_add", name="diary", paths=["short.txt"])
            assert (len(added["versions"]), added["unnoted"]) == (1, []), "the file still counted as new"

    finish(run())


def test_an_answer_that_was_counted_has_its_table(home: Path) -> None:
    text = "# One\n\nBo got 5 EUR from us.\n\n# Two\n\nAnn got 7 EUR.\n"
    (home / "open" / "letters.md").write_text(text + "\n# More\n\nBo got 1 EUR.\n" * MAX_ROWS)
    plan = {
        "row": "one payment",
        "fields": [{"name": "who", "type": "text"}, {"name": "amount", "type": "money"}],
        "sql": "SELECT SUM(amount) FROM rows",
    }

    def reply(messages: tuple[Message, ...]) -> str:
        prompt = messages[-1].content
        if prompt.rstrip().endswith("The JSON object:"):
            return json.dumps(plan)
        rows = [
            {"who": who, "amount": f"{amount} EUR"} for who, amount in re.findall(r"(\w+) got (\d)", prompt)
        ]
        return json.dumps([*rows, {"who": "Eve", "amount": "9 EUR"}])

    async def run() -> None:
        async with client_of(home, ScriptedEngine(reply, window_tokens=4000)) as client:
            question = {"question": "How much in all?", "paths": ["letters.md"], "workflow": "tally"}
            counted = await call(client, "ask", **question)
            table = counted["table"]
            assert counted["answer"].startswith("In EUR: 112\n") and table["sql"] == plan["sql"]
            assert table["columns"] == ["who", "amount", "amount_currency"]
            assert len(table["rows"]) == MAX_ROWS and table["coverage"]["rows"] == MAX_ROWS + 2
            assert table["rows"][0]["values"] == {"who": "Bo", "amount": 5, "amount_currency": "EUR"}
            source = table["rows"][1]["source"]
            whole = (home / "open" / "letters.md").read_text()
            assert whole[source["start"] : source["end"]] == source["excerpt"] == "Ann got 7 EUR."
            assert table["coverage"]["refused"] > 0 and counted["statements"] == []
            read = await call(client, "start_read", **question)
            assert await call(client, "read_result", id=read["id"]) == counted, "and nothing is read again"
            assert "nonsense" in await refusal(client, "ask", **question | {"workflow": "nonsense"})
            result = await call(client, "ask", **question | {"workflow": "full"})
            assert result["table"] is None

    finish(run())


def test_a_read_whose_file_changes_fails_and_continues_once_it_is_the_same_again(
    home: Path, facts: Callable[..., ScriptedEngine]
) -> None:
    file = home / "open" / "facts.txt"
    before = file.read_text()
    question = {"question": "Which facts?", "paths": ["facts.txt"]}

    async def first() -> tuple[str, int]:
        engine = HeldEngine(facts(), free=2)
        async with client_of(home, engine) as client:
            read = await call(client, "start_read", **question)
            await engine.held.wait()
            return str(read["id"]), engine.paid

    async def second(id: str) -> int:
        engine = HeldEngine(facts())
        async with client_of(home, engine) as client:
            failed = await ended(client, id)
            assert failed["state"] == "failed" and engine.paid == 0
            assert "the files have changed since the question was asked" in failed["error"]
            file.unlink()
            file.write_text(before)
            result = await call(client, "ask", **question)
            assert result["id"] == id and result["answer"].startswith("FACT-1: ")
            assert "changed" not in result["answer"]
            assert first_calls + engine.paid == result["chunks"] + 1
        return engine.paid

    read_id, first_calls = finish(first())
    with file.open("r+") as changing:
        changing.write(before.replace(": ", ": changed "))
    finish(second(read_id))


def test_a_waiting_client_hears_that_work_continues(home: Path, facts: Callable[..., ScriptedEngine]) -> None:
    heard: list[float] = []
    engine = HeldEngine(facts(), free=2)

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)
        if len(heard) == 6:
            engine.go.set()

    async def run() -> None:
        async with client_of(home, engine) as client:
            await call(client, "notes_new", name="diary", about="all facts")
            for tool, arguments in (
                ("ask", {"question": "Which facts?", "paths": ["facts.txt"]}),
                ("notes_add", {"name": "diary", "paths": ["facts.txt"]}),
            ):
                heard.clear()
                engine.go.clear()
                engine.free = engine.paid + 2
                result = await client.call_tool(tool, arguments, progress_callback=hear)
                assert not result.is_error
                assert len(heard) >= 6 and heard == sorted(set(heard)), "each is more than the one before"

    finish(run())


def test_an_ask_that_is_cut_off_ends_its_read_and_is_continued(
    home: Path, facts: Callable[..., ScriptedEngine]
) -> None:
    question = {"question": "Which facts?", "paths": ["facts.txt"]}

    async def run() -> None:
        engine = HeldEngine(facts(), free=3)
        async with client_of(home, engine) as client:
            asking = asyncio.ensure_future(client.call_tool("ask", question))
            await engine.held.wait()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            engine.free = 10**6
            result = await call(client, "ask", **question)
            assert result["answer"].startswith("FACT-1") and engine.paid == result["chunks"] + 1

    finish(run())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../secret.txt", "is refused"),
        ("open/../../secret.txt", "is refused"),
        ("{home}/secret.txt", "leads out of"),
        ("{home}/open/../secret.txt", "is refused"),
        ("{home}/opened/x", "leads out of"),
        ("link.txt", "leads out of"),
        ("linked/more.txt", "leads out of"),
        ("linked", "leads out of"),
        ("/etc/passwd", "leads out of"),
        ("short/../facts.txt", "without .."),
        ("-", "there is no file -"),
        ("*.txt", "there is no file *.txt"),
        ("http://localhost/secret.txt", "there is no file"),
        ("", "is refused"),
        ("a\0b", "is refused"),
        ("~/secret.txt", "there is no file"),
        ("x" * 300, "File name too long"),
    ],
)
def test_only_what_is_in_the_open_folders_is_read(
    home: Path, facts: Callable[..., ScriptedEngine], path: str, message: str
) -> None:
    async def run() -> None:
        engine = facts()
        async with client_of(home, engine) as client:
            paths = [path.format(home=home)]
            for tool in ("ask", "start_read"):
                assert message in await refusal(client, tool, question="Which?", paths=paths)
            await call(client, "notes_new", name="diary", about="facts")
            assert message in await refusal(client, "notes_add", name="diary", paths=paths)
        assert not engine.prompts

    finish(run())


def test_impossible_requests_are_refused_in_words(home: Path, facts: Callable[..., ScriptedEngine]) -> None:
    async def run() -> None:
        async with client_of(home, facts()) as client:
            for tool, arguments, message in (
                ("ask", {"question": " ", "paths": ["short.txt"]}, "the question is empty"),
                ("ask", {"question": "Which?", "paths": []}, "name files or folders in"),
                ("ask", {"question": "long " * 100, "paths": ["short.txt"]}, "its budget is 60"),
                ("read_status", {"id": "read-1"}, "there is no read 'read-1'"),
                ("notes_ask", {"name": "x", "question": "Which?"}, "there is no notebook 'x'"),
                ("notes_add", {"name": "x"}, "give either paths or a text"),
                ("notes_new", {"name": "../x", "about": "y"}, "is not a valid notebook name"),
            ):
                text = await refusal(client, tool, **arguments)
                assert message in text and "Traceback" not in text

    finish(run())


def test_a_notebook_by_its_tools(home: Path, facts: Callable[..., ScriptedEngine]) -> None:
    async def run() -> None:
        async with client_of(home, facts()) as client:
            await call(client, "notes_new", name="diary", about="all facts")
            added = await call(client, "notes_add", name="diary", paths=["short.txt"])
            assert [version["number"] for version in added["versions"]] == [1]
            again = await call(client, "notes_add", name="diary", paths=["short.txt"])
            assert again["versions"] == [] and [Path(path).name for path in again["known"]] == ["short.txt"]
            await call(client, "notes_add", name="diary", text="FACT-8: eight")
            result = await call(client, "notes_ask", name="diary", question="Which?")
            assert result["version"] == 2 and "FACT-7: seven; FACT-8: eight" in result["answer"]
            assert result["statements"][0]["text"] == result["answer"]  # one sentence, of two places
            assert result["statements"][0]["source"] is None
            log = (await call(client, "notes_log", name="diary"))["result"]
            notebooks = await call(client, "notes_list")
            assert notebooks["result"] == [{"name": "diary", "about": "all facts", "version": 2}]
            log = (await call(client, "notes_log", name="diary"))["result"]
            assert [version["parent"] for version in log] == [0, 1] and "FACT-7" in log[0]["memory"]

    finish(run())


def test_cut_replies_are_reported(home: Path) -> None:
    async def run() -> None:
        async with client_of(home, ScriptedEngine(lambda _: "word " * 400, window_tokens=2000)) as client:
            result = await call(client, "ask", question="Which?", paths=["short.txt"])
            assert result["cut"] == 2
            await call(client, "notes_new", name="diary", about="all facts")
            added = await call(client, "notes_add", name="diary", paths=["short.txt"])
            assert added["versions"][0]["cut"] == 1

    finish(run())


def command(*words: str) -> StdioServerParameters:
    arguments = ["-m", "memagent", "mcp", *words, "--workflow", "overwrite", "--chunk-tokens", "120"]
    return StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))


def test_over_standard_input_two_at_once(home: Path, serve: Callable[..., Server]) -> None:
    """As assistants start it: each has a process of its own, and both share nobody's folder."""
    words = ("--folder", str(home / "open"), "--base-url", serve().base_url)

    async def run() -> None:
        async with Client(stdio_client(command(*words))) as one, Client(stdio_client(command(*words))) as two:
            for client in (one, two):
                result = await call(client, "ask", question="Which facts?", paths=["short.txt"])
                assert result["answer"].startswith("FACT-7: seven")

    finish(run())


def test_an_interrupt_ends_it_while_it_waits_for_input(home: Path, serve: Callable[..., Server]) -> None:
    words = ["--folder", str(home / "open"), "--base-url", serve().base_url]
    process = subprocess.Popen(
        [sys.executable, "-m", "memagent", "mcp", *words, "--data", str(home / "data")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdin and process.stdout
        hello = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "x", "version": "1"},
            },
        }
        process.stdin.write(json.dumps(hello).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "memagent"
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name the folders that hold them with --folder"),
        (["--folder", "missing"], "--folder names missing, which is not a folder"),
        (["--folder", ".", "--http", "--host", "0.0.0.0"], "name a file with API keys with --keys"),
        (["--folder", ".", "--port", "8322"], "--port is for --http: add it, or drop --port"),
        (["--folder", ".", "--keys", "keys.txt"], "--keys is for --http: add it, or drop --keys"),
    ],
)
def test_what_it_cannot_start_with(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["mcp", *words, "--data", str(tmp_path / "data")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_over_http_with_a_key(home: Path, serve: Callable[..., Server], tmp_path: Path) -> None:
    key = "a-key-of-more-than-sixteen"
    (tmp_path / "keys").write_text(key)
    process = subprocess.Popen(
        [sys.executable, "-m", "memagent", "mcp", "--http", "--port", "0", "--keys", str(tmp_path / "keys"),
         "--folder", str(home / "open"), "--base-url", serve().base_url],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr
        address = ""
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        for line in process.stderr:
            if "/mcp (Ctrl-C" in line:
                address = line.split(" at ")[1].split(" (")[0]
                break
        watchdog.cancel()
        assert address
        assert httpx2.post(address, json={}, trust_env=False).status_code == 401

        async def run() -> None:
            headers = {"Authorization": f"Bearer {key}"}
            http = httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60)
            async with http, Client(streamable_http_client(address, http_client=http)) as client:
                result = await call(client, "ask", question="Which facts?", paths=["short.txt"])
                assert result["answer"].startswith("FACT-7: seven")

        finish(run())
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode in (0, 143)


@pytest.mark.slow
def test_a_session_that_is_left_ends_by_time_and_there_are_only_so_many(
    home: Path, facts: Callable[..., ScriptedEngine]
) -> None:
    begins = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {},
                   "clientInfo": {"name": "test", "version": "1"}},
    }  # fmt: skip
    head = {"Accept": "application/json, text/event-stream"}

    async def run() -> None:
        with Store(home / "data") as store:
            jobs = Jobs(facts(), SETTINGS, store, Metrics())
            desk = Desk(jobs, Folders([home / "open"]), Notebooks(home / "notebooks"), 0.01)
            app = create_http_app(create_mcp(desk), "127.0.0.1", Limits(sessions=3, session_seconds=0.5))
            http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1:1")
            async with app.router.lifespan_context(app), http:

                async def begin() -> httpx2.Response:
                    return await http.post("/mcp", json=begins, headers=head)

                replies = [await begin() for _ in range(4)]
                assert [reply.status_code for reply in replies] == [200, 200, 200, 503]
                session = {"Mcp-Session-Id": replies[0].headers["mcp-session-id"]}
                await asyncio.sleep(1)
                ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
                assert (await http.post("/mcp", json=ping, headers=head | session)).status_code == 404
                assert (await begin()).status_code == 200

    finish(run())
