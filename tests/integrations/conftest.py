"""`memagent serve` as a user starts it, with a scripted model behind it.

SERVER_PYTHON is the Python that has memagent, if it is not the one with the clients.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from server import Fault, Reply, Server, complete

FLAGS = "--port 0 --window-tokens 2000 "
FLAGS += "--chunk-tokens 200 --problem-tokens 60 --memory-tokens 200 --answer-tokens 200"


@pytest.fixture
def serving(serve: Callable[..., Server], tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start servers whose model replies by a function; returns the address that clients are given."""
    with ExitStack() as closing:

        def start(reply: Reply, *flags: str) -> str:
            scripted = serve(pages={"/v1/chat/completions": lambda body: replied(body, reply)})
            model = ["--base-url", scripted.base_url, "--data", str(tmp_path / "data")]
            python = os.environ.get("SERVER_PYTHON", sys.executable)
            command = [python, "-m", "memagent", "serve", *FLAGS.split(), *model, *flags]
            server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            closing.callback(server.wait, 20)
            closing.callback(server.terminate)
            return address_of(server)

        yield start


def address_of(server: subprocess.Popen[str]) -> str:
    """Where a server says that it listens."""
    assert server.stderr
    output = ""
    for line in server.stderr:
        output += line
        if match := re.search(r"http://127\.0\.0\.1:\d+", line):
            return f"{match[0]}/v1"
    raise AssertionError(output)


def replied(body: dict[str, Any], reply: Reply) -> Fault:
    """A completion, streamed in one piece if the client wants a stream."""
    completion = complete(body, reply(body["messages"]))
    if not body.get("stream"):
        return Fault(body=json.dumps(completion))
    (choice,) = completion["choices"]
    choice["delta"] = choice.pop("message")
    return Fault(
        headers={"Content-Type": "text/event-stream"},
        body=f"data: {json.dumps(completion)}\n\ndata: [DONE]\n\n",
    )
