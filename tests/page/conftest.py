"""A browser, and journals for it. These tests are run by `make test-page`."""

from __future__ import annotations

import asyncio
import functools
import http.server
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import memagent
from function_engine import FunctionEngine
from memagent.cli import main
from memagent.server.app import create_app, listen, make_server
from memagent.server.limits import Keys, Limits
from memagent.server.page import page_folder
from memagent.server.store import Store

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = "/usr/bin/chromium"
FACTS = ("A hat was lost in the snow.", "Peterson found a goose.", "The goose held a blue stone.")
FILLER = "Nothing of note was said that evening by anybody in the house.\n"
STORY = "".join(f"{fact} \U0001fabf\n\n{FILLER * 12}" for fact in FACTS)
"""A text with characters beyond UTF-16's first plane, where offsets go wrong that count anything else."""

ANSWER = "The goose held a blue stone. Nobody was hanged."


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here need a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.page)


@pytest.fixture(scope="session")
def browser() -> Iterator[playwright.Browser]:
    """Debian's chromium."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: playwright.Browser) -> Iterator[playwright.Page]:
    """A new page, which must not meet with an error, ask anything or fetch anything from elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB")
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: None if _is_local(request.url) else wrong.append(request.url))
    yield page
    context.close()
    assert wrong == []


def _is_local(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:", "http://127.0.0.1:"))


@pytest.fixture(scope="session")
def modules() -> Iterator[str]:
    """The address of the page's own files, as any web server has them."""
    handler = functools.partial(_Quiet, directory=str(page_folder()))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Path]:
    """Have a text read that says facts, by an engine that notes them down; gives the journal."""

    def recorded(
        story: str = STORY,
        facts: Sequence[str] = FACTS,
        answer: str = ANSWER,
        problem: str = "What did the goose hold?",
        name: str = "story.txt",
    ) -> Path:
        file = tmp_path / name
        file.write_bytes(story.encode())
        memory: list[str] = []

        def reply(messages: tuple[memagent.Message, ...]) -> str:
            prompt = messages[-1].content
            if "<chunk" not in prompt:
                return answer
            fresh = [fact for fact in facts if fact in prompt and fact not in memory]
            memory[:] = [*memory, *fresh][-2:]
            return "MEMORY\n" + " ".join(memory) if fresh else "UNCHANGED"

        settings = memagent.ReadSettings(workflow="gated", chunk_tokens=100)
        trace = tmp_path / f"{Path(name).stem}.jsonl"
        engine = memagent.ScriptedEngine(reply)
        memagent.read(problem, file, engine=engine, trace=trace, settings=memagent.Settings(read=settings))
        return trace

    return recorded


@pytest.fixture
def viewed(page: playwright.Page, tmp_path: Path) -> Callable[..., playwright.Page]:
    """Open what `memagent view` makes of a journal."""

    def opened(trace: Path, *flags: str) -> playwright.Page:
        out = tmp_path / "made" / "page.html"
        assert main(["view", str(trace), "--out", str(out), *flags]) == 0
        page.goto(out.as_uri())
        playwright.expect(page.locator("#status")).to_contain_text("opened in")
        return page

    return opened


@pytest.fixture
def empty(page: playwright.Page, modules: str) -> playwright.Page:
    """The page without a read."""
    page.goto(modules + "index.html")
    return page


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start our server with an engine that reads facts; gives its address. Calls wait for a `gate`."""
    with ExitStack() as closing:

        def start(
            gate: threading.Semaphore | None = None, keys: Keys | None = None, workflow: str = "gated"
        ) -> str:
            store = closing.enter_context(Store(tmp_path / "data"))

            async def wait(_: str) -> None:
                if gate:
                    await asyncio.to_thread(gate.acquire)

            engine = FunctionEngine(wait, memagent.ScriptedEngine(_reply))
            settings = memagent.ReadSettings(workflow=workflow, chunk_tokens=100)
            listener = closing.enter_context(listen("127.0.0.1", 0, keys or Keys()))
            server = make_server(create_app(engine, settings, store, keys), Limits())
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()

            def stop() -> None:
                if gate:
                    gate.release(1000)
                server.should_exit = True
                thread.join()

            closing.callback(stop)
            return f"http://127.0.0.1:{listener.getsockname()[1]}/"

        yield start


def _reply(messages: tuple[memagent.Message, ...]) -> str:
    prompt = messages[-1].content
    if "<chunk" not in prompt:
        return ANSWER
    facts = [fact for fact in FACTS if fact in prompt]
    return "MEMORY\n" + " ".join(facts[-2:]) if facts else "UNCHANGED"
