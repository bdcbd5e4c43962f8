"""A server under load: many streaming chats at once, each read in chunks by an engine with 50 ms per call.

Prints how many were answered, how long they took, the server's memory, and how long /health took meanwhile;
with --out, also writes this as JSON. Servers, clients and the /health probe run in separate processes. A
second, idle server shows what the machine itself contributes.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from memagent.engines import ScriptedEngine
from memagent.server.app import listen
from memagent.server.limits import Keys, Limits
from memagent.settings import ReadSettings
from memagent.types import Completion, Message, Sampling
from server import facts_document, read_facts

CALL_SECONDS = 0.05
CALLS = 64
QUESTION = "What are all the facts?"


class Slow(ScriptedEngine):
    """Reads facts, with a pause for each call."""

    def __init__(self) -> None:
        def reply(messages: tuple[Message, ...]) -> str:
            return read_facts([{"role": message.role, "content": message.content} for message in messages])

        super().__init__(reply, window_tokens=2000, calls=CALLS)
        self._slots = asyncio.Semaphore(CALLS)

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        async with self._slots:
            await asyncio.sleep(CALL_SECONDS)
        completion = await super().complete(messages, sampling)
        self.prompts.clear()
        return completion


def serve(folder: str, pipe: Any) -> None:
    """Serve until killed."""
    from memagent.server.app import create_app, make_server
    from memagent.server.store import Store

    settings = ReadSettings(workflow="overwrite", chunk_tokens=120, memory_tokens=300, answer_tokens=300)
    listener, limits = listen("127.0.0.1", 0, Keys()), Limits(requests=5000)
    app = create_app(Slow(), settings, Store(Path(folder)), limits=limits)
    pipe.send(listener.getsockname()[1])
    asyncio.run(make_server(app, limits).serve(sockets=[listener]))


def probe(ports: Sequence[int], stop: Any, pipe: Any) -> None:
    """Request /health from each server in turn, on open connections."""
    asked: list[tuple[http.client.HTTPConnection, list[float]]] = [
        (http.client.HTTPConnection("127.0.0.1", port, timeout=60), []) for port in ports
    ]
    while not stop.is_set():
        for connection, taken in asked:
            started = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            taken.append(time.perf_counter() - started)
            time.sleep(0.005)
    pipe.send([taken for _, taken in asked])


async def ask(port: int, number: int, paragraphs: int) -> tuple[float, bool]:
    """Run one streaming chat; returns its seconds and whether the answer is right."""
    document = facts_document(paragraphs, seed=number, words=8)
    turns = [{"role": "user", "content": document}, {"role": "user", "content": QUESTION}]
    body = json.dumps({"model": "memagent", "stream": True, "messages": turns, "memagent": {}}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    started = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + body)
        reply = (await reader.read()).decode()
        writer.close()
    except OSError:
        return time.perf_counter() - started, False
    facts = [part for part in document.replace(".", "").split() if part.startswith("FACT")]
    return time.perf_counter() - started, "data: [DONE]" in reply and all(fact in reply for fact in facts)


def rss_mib(pid: int) -> float:
    """The resident memory of a process."""
    line = next(
        item for item in Path(f"/proc/{pid}/status").read_text().splitlines() if item.startswith("VmRSS")
    )
    return int(line.split()[1]) / 1024


async def load(port: int, pid: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds; memory is measured at the end of each, and at its peak within it."""
    rounds, answered, seconds = [], 0, []
    for number in range(options.rounds):
        asked = [
            asyncio.create_task(ask(port, number * options.chats + item, options.paragraphs))
            for item in range(options.chats)
        ]
        most = 0.0
        while not all(question.done() for question in asked):
            most = max(most, rss_mib(pid))
            await asyncio.sleep(0.1)
        done = [question.result() for question in asked]
        answered += sum(right for _, right in done)
        seconds += [taken for taken, _ in done]
        rounds.append({"most_mib": round(most), "after_mib": round(rss_mib(pid))})
    return {
        "chats": options.chats * options.rounds,
        "answered": answered,
        "seconds_median": round(sorted(seconds)[len(seconds) // 2], 2),
        "seconds_most": round(max(seconds), 2),
        "rounds": rounds,
    }


def percentile(values: list[float], share: float) -> float:
    """The percentile of times in seconds, in milliseconds."""
    return round(1000 * sorted(values)[min(len(values) - 1, int(share * len(values)))], 1)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paragraphs", type=int, default=50)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stop = context.Event()
    with tempfile.TemporaryDirectory() as folder:
        servers, ports = [], []
        for name in ("busy", "idle"):
            servers.append(context.Process(target=serve, args=(f"{folder}/{name}", theirs), daemon=True))
            servers[-1].start()
            ports.append(ours.recv())
        prober = context.Process(target=probe, args=(ports, stop, theirs), daemon=True)
        prober.start()
        time.sleep(1)
        busy = servers[0].pid or 0
        result = {"idle_mib": round(rss_mib(busy))} | asyncio.run(load(ports[0], busy, options))
        stop.set()
        for name, taken in zip(("health_ms", "health_ms_of_an_idle_server"), ours.recv(), strict=True):
            result[name] = {
                "asked": len(taken),
                "median": percentile(taken, 0.5),
                "p99": percentile(taken, 0.99),
                "most": percentile(taken, 1.0),
            }
        for server in servers:
            server.terminate()
            server.join()
    for name, value in result.items():
        print(f"{name:16} {value}")
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
