"""Many streams at once: none is lost. How fast that is, benchmarks/serving.py tells."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest

from function_engine import FunctionEngine
from server import facts_document

PARAGRAPHS = 36


@pytest.mark.parametrize("chats", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_many_streams_at_once(chats: int, serving: Any, facts: Any) -> None:
    async def pause(_: str) -> None:
        await asyncio.sleep(0.05)

    served = serving(FunctionEngine(pause, facts(), calls=chats))
    answers = asyncio.run(_ask_all(int(served.address.rpartition(":")[2]), chats))
    for number, (answer, alive) in enumerate(answers):
        assert all(f"FACT-{paragraph}:" in answer for paragraph in range(PARAGRAPHS) if paragraph % 3), number
        assert alive == b"HTTP/1.1 200 OK"
    assert not list((served.store.folder / "reads").iterdir())


async def _ask_all(port: int, chats: int) -> list[tuple[str, bytes]]:
    return await asyncio.gather(*(_ask(port, number) for number in range(chats)))


async def _ask(port: int, number: int) -> tuple[str, bytes]:
    """The text that was streamed, and the first line of the reply."""
    turns = [
        {"role": "user", "content": facts_document(PARAGRAPHS, seed=number, words=8)},
        {"role": "user", "content": "What are all the facts?"},
    ]
    body = json.dumps({"model": "memagent", "stream": True, "messages": turns, "memagent": {}}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    rest = "Content-Type: application/json\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write((head + rest).encode() + body)
    first = await reader.readline()
    lines = (await reader.read()).decode().splitlines()
    writer.close()
    assert "data: [DONE]" in lines
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks), first.strip()


def test_collections_of_garbage_are_rare_while_it_serves(serving: Any) -> None:
    usual = gc.get_threshold()
    served = serving()
    with served.client() as client:
        assert client.get("/health").status_code == 200
    assert gc.get_threshold()[2] > usual[2] and gc.get_freeze_count() > 0
    served.close()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (usual, 0)
