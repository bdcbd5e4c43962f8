"""A chat-completions endpoint that answers at once, in its own process.

It reads only the length of a request and always writes the same reply, so that all measured time is the
client's. A request without a body gets the list of models, which also tells how many completions were
written. With a delay, it acts as a model that takes that long for each call and any number of calls at once.
Not covered: errors, streaming, TLS.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from contextlib import AbstractContextManager, suppress
from functools import partial
from urllib.request import urlopen

import measure

REPLY = (
    "Holmes read the name in the hat as Henry Baker; the goose was left with Peterson, who found the blue "
    "carbuncle of the Countess of Morcar in its crop. The reward is 1,000 pounds. James Ryder of the Hotel "
    "Cosmopolitan was seen at the room on December 22nd; John Horner, a plumber, was arrested for it."
)
_BYTES_PER_TOKEN = 4
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_WINDOW_TOKENS = 32768


class _Connection(asyncio.Protocol):
    """One client connection: counts the bytes of a request and replies when it is complete."""

    completions = 0  # of all clients

    def __init__(self, delay_seconds: float) -> None:
        self.delay_seconds = delay_seconds
        self.missing = 0
        self.head = b""
        self.length = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        while data:
            if not self.missing:
                data = self._begin(data)
            taken = min(self.missing, len(data))
            self.missing -= taken
            if taken and not self.missing:
                _Connection.completions += 1
                self._reply(_reply(self.length))
            data = data[taken:]

    def _reply(self, reply: bytes) -> None:
        if self.delay_seconds:
            asyncio.get_running_loop().call_later(self.delay_seconds, self.transport.write, reply)
        else:
            self.transport.write(reply)

    def _begin(self, data: bytes) -> bytes:
        """Take the head of a request; returns what follows it."""
        self.head += data
        end = self.head.find(b"\r\n\r\n")
        if end < 0:
            return b""
        head, rest = self.head[:end], self.head[end + 4 :]
        self.head = b""
        match = _LENGTH.search(head)
        self.missing = self.length = int(match[1]) if match else 0
        if not self.missing:
            model = {"id": "zero", "max_model_len": _WINDOW_TOKENS, "completions": self.completions}
            self.transport.write(_response(json.dumps({"object": "list", "data": [model]}).encode()))
        return rest


def _response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def _reply(request_bytes: int) -> bytes:
    return _response(_BEFORE + b"%d" % (request_bytes // _BYTES_PER_TOKEN) + _AFTER)


_BEFORE, _AFTER = (
    json.dumps(
        {
            "id": "chatcmpl-zero",
            "object": "chat.completion",
            "created": 1700000000,
            "model": "zero",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": REPLY},
                    "finish_reason": "stop",
                    "logprobs": None,
                }
            ],
            "usage": {"completion_tokens": 80, "total_tokens": 80, "prompt_tokens": "SLOT"},
        }
    )
    .encode()
    .split(b'"SLOT"')
)


async def _serve(delay_seconds: float) -> None:
    connection = partial(_Connection, delay_seconds)
    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def serving(delay_seconds: float = 0.0) -> AbstractContextManager[int]:
    """Start the server; yields its port."""
    return measure.start(__file__, str(delay_seconds))


def completions(port: int) -> int:
    """How many completions the server has written."""
    with urlopen(f"http://127.0.0.1:{port}/v1/models") as reply:
        return int(json.load(reply)["data"][0]["completions"])


def seconds_per_call(port: int, bodies: list[bytes], connections: int) -> float:
    """The server's own ceiling: raw sockets, requests prepared beforehand, replies discarded."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: zero\r\nContent-Length: {}\r\n\r\n"
    requests = [head.format(len(body)).encode() + body for body in bodies]
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    started = time.perf_counter()
    for request in requests:
        for client in sockets:
            client.sendall(request)
        for client in sockets:
            client.recv(65536)  # a reply is one small write, so it comes in one piece
    seconds = time.perf_counter() - started
    for client in sockets:
        client.close()
    return seconds / (len(requests) * connections)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(float(sys.argv[1])))
