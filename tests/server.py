"""A chat-completions server on loopback for tests: a pure function replies, faults come by a plan.

Every completion that it means to deliver is logged before it is sent, so that tests can count what
a client pays for. `python tests/server.py --port 0` runs it alone and prints its address.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import re
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Messages = Sequence[Mapping[str, str]]
Reply = Callable[[Messages], str]


@dataclass(frozen=True)
class Fault:
    """What is sent in place of a completion.

    `cut` closes the connection "before" or in the "middle" of the reply; `spoil` changes the completion
    that would have been sent. A fault with none of these and no body, at status 200, is a completion
    that comes too late.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | bytes = ""
    delay_seconds: float = 0.0
    cut: str = ""
    spoil: Callable[[dict[str, Any]], None] | None = None


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None, **fields: Any) -> Fault:
    """An error reply in OpenAI's shape."""
    error = {"message": message, "type": "server_error", "param": None, "code": None, **fields}
    return Fault(status, headers or {}, json.dumps({"error": error}))


SLOW_SECONDS = 3.0
PASSING_FAULTS = {
    "rate limited": refusal(429, "slow down"),
    "rate limited, come at once": refusal(429, "slow down", {"Retry-After": "0"}),
    "rate limited, come soon": refusal(429, "slow down", {"Retry-After": "0.05"}),
    "internal error": refusal(500, "something broke"),
    "overloaded": Fault(503, {"Content-Type": "text/html"}, "<h1>503 Service Unavailable</h1>"),
    "disconnect": Fault(cut="before"),
    "disconnect in the body": Fault(cut="middle"),
    "malformed JSON": Fault(body='{"choices": [{"message": {"content": "half a me'),
    "no completion": Fault(body='{"object": "chat.completion", "choices": []}'),
    "slow": Fault(delay_seconds=SLOW_SECONDS),
}
"""Each kind of failure that another try may mend."""


def ended(reason: str | None, share: float) -> Fault:
    """A reply that ends for a reason other than its own, with that share of its text, or none (null)."""

    def spoil(completion: dict[str, Any]) -> None:
        choice = completion["choices"][0]
        text = choice["message"]["content"]
        choice["message"]["content"] = text[: int(len(text) * share)] or None
        choice["finish_reason"] = reason

    return Fault(spoil=spoil)


def thinks_too_long(completion: dict[str, Any]) -> None:
    """Spoil a completion: its tokens were used up by a thought."""
    choice = completion["choices"][0]
    choice["message"]["content"] = f"<think>\nLet me see. {choice['message']['content']}"
    choice["finish_reason"] = "length"


UNUSABLE_REPLIES = {
    "null": ended("stop", 0),
    "filtered": ended("content_filter", 0),
    "filtered in part": ended("content_filter", 0.5),
    "error in part": ended("error", 0.5),
}
"""Replies of status 200 that must not pass for answers."""

UNFINISHED_THOUGHT = Fault(spoil=thinks_too_long)
"""Another of these; a greedy model would write the same again."""

PASSING_FAULTS |= UNUSABLE_REPLIES

FaultPlan = Callable[[str, int], Fault | None]
"""From a prompt's digest and how often it was asked before to the fault that this call meets."""


def no_faults(digest: str, attempt: int) -> Fault | None:
    """Every call succeeds."""
    return None


def seeded_faults(rate: float, seed: int, kinds: Sequence[str] = tuple(PASSING_FAULTS)) -> FaultPlan:
    """Each attempt fails with probability `rate`; the same seed gives the same faults."""

    def plan(digest: str, attempt: int) -> Fault | None:
        chance = random.Random(f"{seed} {digest} {attempt}")
        return PASSING_FAULTS[chance.choice(kinds)] if chance.random() < rate else None

    return plan


def scripted_faults(*faults: Fault | None) -> FaultPlan:
    """The first calls, whatever they ask, meet these in turn; later ones succeed."""
    rest = iter(faults)
    return lambda digest, attempt: next(rest, None)


def lasting_fault(fault: Fault, spared: int = 0) -> FaultPlan:
    """All calls but the first `spared` meet the same fault."""
    calls = iter(range(spared))
    return lambda digest, attempt: fault if next(calls, None) is None else None


WORDINGS: Mapping[str, Callable[[int, int], dict[str, Any]]] = {
    "openai": lambda tokens, window: {
        "error": {
            "message": f"This model's maximum context length is {window} tokens. However, your messages "
            f"resulted in {tokens} tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    },
    "vllm": lambda tokens, window: {
        "error": {
            "message": f"'max_tokens' or 'max_completion_tokens' is too large: 1024. This model's maximum "
            f"context length is {window} tokens and your request has {tokens} input tokens "
            f"(1024 > {window} - {tokens}).",
            "type": "BadRequestError",
            "param": "max_tokens",
            "code": 400,
        }
    },
    "vllm before 0.9": lambda tokens, window: {
        "object": "error",
        "message": f"This model's maximum context length is {window} tokens. However, you requested "
        f"{tokens} tokens ({tokens} in the messages, 1024 in the completion). Please reduce the length "
        "of the messages or completion.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
    "llama.cpp": lambda tokens, window: {
        "error": {
            "code": 400,
            "message": f"request ({tokens} tokens) exceeds the available context size ({window} tokens), "
            "try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": tokens,
            "n_ctx": window,
        }
    },
}
"""How servers say that a prompt is longer than the model's window, each with status 400."""


@dataclass(frozen=True)
class Request:
    """One request that arrived; the names of its headers are in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def digest(self) -> str:
        """What was asked, in 16 hex digits."""
        return hashlib.sha256(json.dumps(self.body.get("messages")).encode()).hexdigest()[:16]


class Server:
    """The server; its address is `base_url`. Close it with `close`, or use it in a `with`.

    `paid` holds the digest of every completion made, in order; `requests` all that was asked.
    `window` is the longest prompt taken, in characters; a longer one is refused in the words of
    `wording`. `listed` is what /v1/models tells, or None to have no such page; it is out of order
    for the first `list_failures` that ask. `completion` makes the whole completion of a call's body, with
    token ids for instance, in place of `reply`; `pages` answers what is asked at other paths, and
    `model_page`, where it is set, takes the place of /v1/models.
    """

    def __init__(
        self,
        reply: Reply | None = None,
        faults: FaultPlan = no_faults,
        *,
        latency_seconds: float = 0.0,
        window: int | None = None,
        wording: str = "openai",
        listed: Sequence[Any] | None = ({"id": "test-model"},),
        list_failures: int = 0,
        completion: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        pages: Mapping[str, Callable[[dict[str, Any]], Fault]] | None = None,
        port: int = 0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.model_page: Fault | None = None
        self.completion = completion or (lambda body: complete(body, self.reply(body["messages"])))
        self.pages = pages or {}
        self.reply = reply or read_facts
        self.faults = faults
        self.latency_seconds = latency_seconds
        self.window = window
        self.wording = wording
        self.listed = listed
        self.list_failures = list_failures
        self.requests: list[Request] = []
        self.paid: list[str] = []
        self.in_flight = self.most_in_flight = 0
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._http = _Listener(("127.0.0.1", port), _connection_for(self))
        if context:
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def base_url(self) -> str:
        """The address that clients are given."""
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The bodies of all calls for a completion."""
        return [request.body for request in self.requests if request.method == "POST"]

    @property
    def paid_twice(self) -> int:
        """How many completions were made of a prompt that had got one before."""
        return len(self.paid) - len(set(self.paid))

    def wait(self, seconds: float) -> None:
        """Pause, unless the server closes."""
        self._closed.wait(seconds)

    def close(self) -> None:
        """Stop serving; connections are dropped."""
        self._closed.set()
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def arrive(self, request: Request) -> int:
        """Note a request; returns how often its prompt was asked before."""
        with self._lock:
            self.requests.append(request)
            self._asked[request.digest] += 1
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            return self._asked[request.digest] - 1

    def leave(self) -> None:
        """Note that a request was dealt with."""
        with self._lock:
            self.in_flight -= 1

    def respond(self, request: Request, attempt: int) -> Fault:
        """The reply to a request: a fault, a refusal, or (status 200) a completion."""
        if request.method == "GET" and self.model_page:
            return self.model_page
        if page := self.pages.get(request.path):
            return page(request.body)
        if request.method == "GET":
            return self._models(request, attempt)
        if not request.path.partition("?")[0].endswith("/v1/chat/completions"):
            return refusal(404, f"no page {request.path}")
        fault = self.faults(request.digest, attempt)
        if fault and (fault.status != 200 or fault.body or fault.cut == "before"):
            return fault
        body = request.body
        prompt = "".join(message["content"] for message in body["messages"])
        if self.window is not None and len(prompt) > self.window:
            error = WORDINGS[self.wording](count_tokens(prompt), self.window)
            return Fault(400, body=json.dumps(error))
        completion = self.completion(body)
        if fault and fault.spoil:
            fault.spoil(completion)
        text = json.dumps(completion)
        if fault:
            return replace(fault, body=text)
        with self._lock:
            self.paid.append(request.digest)
        return Fault(body=text, delay_seconds=self.latency_seconds)

    def _models(self, request: Request, attempt: int) -> Fault:
        if attempt < self.list_failures:
            return PASSING_FAULTS["overloaded"]
        if self.listed is None or not request.path.partition("?")[0].endswith("/v1/models"):
            return refusal(404, f"no page {request.path}")
        return Fault(body=json.dumps({"object": "list", "data": list(self.listed)}))


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or speaks no TLS, is no news; anything else is."""
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


def _connection_for(server: Server) -> type[BaseHTTPRequestHandler]:
    class Connection(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            if len(body) < length:
                raise ConnectionResetError  # the client was killed while it sent
            self._answer(json.loads(body))

        def _answer(self, body: dict[str, Any]) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body)
            attempt = server.arrive(request)
            try:
                response = server.respond(request, attempt)
                server.wait(response.delay_seconds)
            finally:
                server.leave()
            self._send(response)

        def _send(self, response: Fault) -> None:
            if response.cut == "before":
                return self._hang_up()
            content = response.body.encode() if isinstance(response.body, str) else response.body
            self.send_response(response.status)
            headers = {"Content-Type": "application/json", **response.headers}
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if response.cut == "middle":
                self.wfile.write(content[: len(content) // 2])
                return self._hang_up()
            self.wfile.write(content)
            return None

        def _hang_up(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Connection


def complete(body: Mapping[str, Any], reply: str) -> dict[str, Any]:
    """A chat completion of a reply, cut at the tokens that the body allows."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or math.inf
    tokens = [match.group() for match in re.finditer(_TOKEN, reply)]
    cut = len(tokens) > limit
    reply_tokens = tokens[: int(limit)] if cut else tokens
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(reply_tokens)},
        "finish_reason": "length" if cut else "stop",
    }
    prompt_tokens = sum(count_tokens(message["content"]) for message in body["messages"])
    completion = {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(reply_tokens),
            "total_tokens": prompt_tokens + len(reply_tokens),
        },
    }
    if body.get("logprobs"):
        choice["logprobs"] = {"content": [{"token": token, "logprob": -0.25} for token in reply_tokens]}
    if body.get("return_token_ids"):
        choice["token_ids"] = list(range(100, 100 + len(reply_tokens)))
        completion["prompt_token_ids"] = list(range(prompt_tokens))
    return completion


_TOKEN = r"\s*(?:\d|[^\W\d]{1,6}|[^\w\s]|_)|\s+\Z"


def count_tokens(text: str) -> int:
    """Tokens as this server has them: a digit, a sign or up to six letters, with the space before."""
    return len(re.findall(_TOKEN, text))


_FACT = r"FACT-\d+: \w+"


def read_facts(messages: Messages) -> str:
    """A reader that keeps every `FACT-<number>: <value>` and a seal over all that it was shown.

    Asked for a note, or to answer from a document, it names the facts.

    A chunk without facts leaves the memory as it is: by UNCHANGED where the prompt knows that
    word, else by a copy of the memory. A new one stands below MEMORY where the prompt asks for it.
    The seal changes with every rewriting, so a step that is lost, repeated or out of order shows in
    the memory and in the answer.
    """
    prompt = messages[-1]["content"]
    text = _section(prompt, "text") or _section(prompt, "document")
    if text is not None:
        return "; ".join(re.findall(_FACT, text)) or "nothing is told"
    memory = _section(prompt, "memory") or ""
    lines = [line for line in memory.splitlines() if re.match("FACT|SEAL", line)]
    chunk = _section(prompt, "chunk")
    if chunk is None:
        return "; ".join(lines) or "nothing was found"
    facts = re.findall(_FACT, chunk)
    if not facts:
        return "UNCHANGED" if "UNCHANGED" in prompt else memory
    known_facts = [line for line in lines if line.startswith("FACT")]
    seal = hashlib.sha256(f"{memory} {chunk}".encode()).hexdigest()[:8]
    marker = ["MEMORY"] if "MEMORY" in prompt else []
    return "\n".join([*marker, *known_facts, *facts, f"SEAL {seal}"])


def _section(prompt: str, name: str) -> str | None:
    match = re.search(rf"<({name}(?:-\w+)?)>\n(.*?)\n</\1>", prompt, re.DOTALL)
    return match.group(2) if match else None


def facts_document(chunks: int, seed: int = 0, words: int = 40) -> str:
    """A text of so many paragraphs, two of three with a fact; words of its own make each unlike the rest."""
    chance = random.Random(seed)
    paragraphs = []
    for number in range(chunks):
        filler = ["".join(chance.choices("abcdefghijklmnop", k=6)) for _ in range(words)]
        if number % 3:
            filler.insert(chance.randrange(words), f"FACT-{number}: {chance.choice(filler)}")
        paragraphs.append(" ".join(filler) + ".")
    return "\n\n".join(paragraphs) + "\n"


def main() -> None:
    """Serve until killed, printing the address first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--faults", type=float, default=0.0, help="the share of calls that fail")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds")
    parser.add_argument("--window", type=int, help="the longest prompt taken, in characters")
    parser.add_argument("--wording", choices=WORDINGS, default="openai")
    options = parser.parse_args()
    server = Server(
        faults=seeded_faults(options.faults, options.seed),
        latency_seconds=options.latency,
        window=options.window,
        wording=options.wording,
        port=options.port,
    )
    print(server.base_url, flush=True)  # noqa: T201
    threading.Event().wait()


if __name__ == "__main__":
    main()
