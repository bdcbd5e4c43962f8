"""A chat-completions endpoint that takes the time of a 7B model on one GPU, and reads as `finder.py` does.

Each NAME in `/NAME/v1/chat/completions` has its own GPU, so that concurrent readers do not wait for each
other. A GPU works in steps, as servers with continuous batching do: a step takes in waiting prompts, first
come first served, up to 8192 tokens, and writes one token of every reply that has begun. It lasts as long as
its tokens take to compute, but no less than reading the weights does, plus a little for each reply's cache.
A call that is made to fail does so at once, with status 500.

The figures are those of Qwen2.5-7B in bfloat16 on an H100. Reading 15.2 GB of weights takes 4.5 ms at 3.35
TB/s, and 15.2 GFLOP per token allow 65,000 tokens/s at the dense peak of 989 TFLOPS. No server comes near
either: 8 ms per step and 25,000 prompt tokens/s (38% of the peak) are assumed. GPUStack measured 32,000
tokens/s in total with vLLM for a 9B model on an H100 with long prompts (docs.gpustack.ai, Qwen3.5-9B).
The prefix cache holds blocks of 16 tokens and evicts the least recently used; at 57 KB per token there is
room for 800,000. A token is four characters, as in cl100k for the documents of `ledgers.py`. A post to
`/NAME/reset` starts over; `/NAME/record` returns all calls. Not simulated: streaming, sampling.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

sys.path.append(str(Path(__file__).parent.parent / "tests"))

import measure
from finder import reply_to

from server import FaultPlan, no_faults, seeded_faults

STEP_SECONDS = 0.008
PROMPT_TOKENS_PER_SECOND = 25_000
REPLY_SECONDS = 0.0001  # per step, to read the cache of a reply being written
STEP_TOKENS = 8192
WINDOW_TOKENS = 8192
CACHE_TOKENS = 800_000
CHARACTERS_PER_TOKEN = 4
BLOCK_CHARACTERS = 16 * CHARACTERS_PER_TOKEN


@dataclass
class Call:
    """One request: when it began and ended, in seconds of the server's clock, and what it cost."""

    digest: str
    began: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    ended: float = 0.0
    status: int = 200


@dataclass
class _Work:
    """A call that is waiting or being computed."""

    call: Call
    blocks: list[str]
    done: asyncio.Event
    left_to_read: int = -1
    left_to_write: int = 0


@dataclass
class Gpu:
    """A simulated GPU: its queue, its prefix cache and its record.

    `busy_seconds` is the time of all steps; `late_seconds` is how far this machine fell behind the simulated
    clock at worst, which is the error that a busy machine adds.
    """

    faults: FaultPlan = no_faults
    calls: list[Call] = field(default_factory=list)
    busy_seconds: float = 0.0
    late_seconds: float = 0.0
    _asked: Counter[str] = field(default_factory=Counter)
    _works: list[_Work] = field(default_factory=list)
    _cache: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _worker: asyncio.Task[None] | None = None

    async def complete(self, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and body of the response to a call."""
        prompt = "\n".join(_text(message["content"]) for message in body["messages"])
        digest = hashlib.sha256(prompt.encode()).hexdigest()[:16]
        call = Call(digest, time.monotonic(), len(prompt) // CHARACTERS_PER_TOKEN, 0)
        self.calls.append(call)
        attempt = self._asked[digest]
        self._asked[digest] += 1
        limit = int(body.get("max_completion_tokens") or body.get("max_tokens") or 512)
        if self.faults(digest, attempt):
            return self._refused(call, 500, "the engine failed")
        if call.prompt_tokens + limit > WINDOW_TOKENS:
            reason = f"the prompt has {call.prompt_tokens} tokens and {limit} are asked for"
            words = f"This model's maximum context length is {WINDOW_TOKENS} tokens: {reason}"
            return self._refused(call, 400, words, "context_length_exceeded")
        reply = reply_to(prompt)
        text = reply[: limit * CHARACTERS_PER_TOKEN]
        call.completion_tokens = -(-len(text) // CHARACTERS_PER_TOKEN)
        work = _Work(call, _blocks(prompt), asyncio.Event(), left_to_write=call.completion_tokens)
        self._works.append(work)
        self._arrived.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._run())
        await work.done.wait()
        call.ended = time.monotonic()
        return 200, _completion(call, text, "length" if len(text) < len(reply) else "stop")

    def _refused(self, call: Call, status: int, message: str, code: str = "") -> tuple[int, dict[str, Any]]:
        call.ended, call.status = time.monotonic(), status
        return status, {"error": {"message": message, "type": "server_error", "param": None, "code": code}}

    async def _run(self) -> None:
        """Take steps as long as there is work, catching up after delays of the machine."""
        clock = time.monotonic()
        while self._works:
            self._arrived.clear()
            read = self._take_in()
            writing = [work for work in self._works if work.left_to_read == 0]
            step = max(STEP_SECONDS, (read + len(writing)) / PROMPT_TOKENS_PER_SECOND)
            step += len(writing) * REPLY_SECONDS
            steps = 1 if read else min(work.left_to_write for work in writing)
            if steps > 1:  # identical until a reply ends or another prompt arrives
                steps = min(steps, await self._steps_until_arrival(clock, step, steps))
            self.busy_seconds += steps * step
            clock += steps * step
            self.late_seconds = max(self.late_seconds, time.monotonic() - clock)
            await asyncio.sleep(clock - time.monotonic())
            for work in writing:
                work.left_to_write -= steps
            for work in [work for work in writing if work.left_to_write <= 0]:
                self._works.remove(work)
                work.done.set()

    async def _steps_until_arrival(self, clock: float, step: float, steps: int) -> int:
        """How many of `steps` steps have begun when a prompt arrives."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), clock + steps * step - time.monotonic())
            return max(1, math.ceil((time.monotonic() - clock) / step))
        return steps

    def _take_in(self) -> int:
        """Take in waiting prompts for a step; returns the number of tokens taken."""
        room = STEP_TOKENS
        for work in self._works:
            if work.left_to_read < 0 and room:
                work.left_to_read = self._uncached(work)
            if work.left_to_read > 0 and room:
                taken = min(room, work.left_to_read)
                work.left_to_read -= taken
                room -= taken
                if not work.left_to_read:
                    self._remember(work.blocks)
        return STEP_TOKENS - room

    def _uncached(self, work: _Work) -> int:
        """The tokens of the prompt to compute: at least one."""
        known = next((index for index, block in enumerate(work.blocks) if block not in self._cache), None)
        count = len(work.blocks) if known is None else known
        tokens = count * BLOCK_CHARACTERS // CHARACTERS_PER_TOKEN
        work.call.cached_tokens = max(0, min(tokens, work.call.prompt_tokens - 1))
        return max(1, work.call.prompt_tokens - work.call.cached_tokens)

    def _remember(self, blocks: Sequence[str]) -> None:
        for block in reversed(blocks):  # so that the end of a prompt is evicted before its beginning
            self._cache[block] = None
            self._cache.move_to_end(block)
        while len(self._cache) * BLOCK_CHARACTERS // CHARACTERS_PER_TOKEN > CACHE_TOKENS:
            self._cache.popitem(last=False)

    def record(self) -> dict[str, Any]:
        """Everything since the last reset."""
        return {
            "calls": [asdict(call) for call in self.calls],
            "busy_seconds": self.busy_seconds,
            "late_seconds": self.late_seconds,
        }


def _text(content: Any) -> str:
    """The text of a message, which is a string or a list of parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


def _blocks(prompt: str) -> list[str]:
    """A key for each full block of a prompt, which depends on everything before it."""
    names, digest = [], hashlib.sha256()
    for start in range(0, len(prompt) - BLOCK_CHARACTERS + 1, BLOCK_CHARACTERS):
        digest.update(prompt[start : start + BLOCK_CHARACTERS].encode())
        names.append(digest.hexdigest()[:24])
    return names


def _completion(call: Call, text: str, finish_reason: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{call.digest}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "simulated-7b",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": finish_reason,
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": call.prompt_tokens,
            "completion_tokens": call.completion_tokens,
            "total_tokens": call.prompt_tokens + call.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": call.cached_tokens},
        },
    }


class Server:
    """The HTTP server in front of all GPUs."""

    def __init__(self) -> None:
        self._gpus: dict[str, Gpu] = {}

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it disconnects or is killed."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = re.search(r"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else b""
                status, reply = await self._answer(head.split(" ")[1], json.loads(body or "{}"))
                content = json.dumps(reply).encode()
                line = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\n"
                kind = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
                writer.write((line + kind).encode() + content)
                await writer.drain()
        writer.close()

    async def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        _, name, *rest = path.split("/")
        if rest == ["reset"]:
            rate, seed = body.get("faults", 0.0), body.get("seed", 0)
            self._gpus[name] = Gpu(seeded_faults(rate, seed, ["internal error"]))
            return 200, {}
        gpu = self._gpus.setdefault(name, Gpu())
        if rest == ["record"]:
            return 200, gpu.record()
        if rest[-1:] == ["models"]:
            listed = {"id": "simulated-7b", "object": "model", "max_model_len": WINDOW_TOKENS}
            return 200, {"object": "list", "data": [listed]}
        if rest[-2:] == ["chat", "completions"]:
            return await gpu.complete(body)
        return 404, {"error": {"message": f"no page {path}"}}


async def _serve() -> None:
    server = await asyncio.start_server(Server().connect, "127.0.0.1", 0, limit=2**20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def serving() -> AbstractContextManager[int]:
    """Start the server in its own process; yields its port."""
    return measure.start(__file__)


def reset(port: int, name: str, faults: float = 0.0, seed: int = 0) -> None:
    """Reset a GPU: empty cache, empty record, and a share `faults` of failing calls."""
    body = json.dumps({"faults": faults, "seed": seed}).encode()
    urlopen(Request(f"http://127.0.0.1:{port}/{name}/reset", body)).close()


def record(port: int, name: str) -> tuple[list[Call], float, float]:
    """The calls of a GPU, its busy seconds, and how late it was at worst."""
    with urlopen(f"http://127.0.0.1:{port}/{name}/record") as reply:
        body = json.load(reply)
    return [Call(**call) for call in body["calls"]], body["busy_seconds"], body["late_seconds"]


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve())
