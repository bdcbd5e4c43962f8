"""Agent Lightning's own server and controller start our agent, before a scripted model server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server import Messages, Server

pytest.importorskip("agentlightning")
import httpx

ADAPTERS = Path(__file__).parents[2] / "integrations" / "trainers"
EXAMPLE = {
    "id": "e1",
    "problem": "Who came?",
    "document": "\n\n".join(f"Nobody came at {hour} o'clock. Ada came later." for hour in range(30)),
    "answers": ["Ada"],
}


def read(messages: Messages) -> str:
    return "Ada came." if "<chunk" in messages[-1]["content"] else "Ada"


@pytest.fixture
def lightning(tmp_path: Path) -> Iterator[httpx.Client]:
    """Its server with the model `policy`, and its controller, which starts agents as processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ADAPTERS), os.environ.get("PYTHONPATH", "")]),
        "MEMAGENT_WORKFLOW": "overwrite",
        "MEMAGENT_CHUNK_TOKENS": "100",
        "MEMAGENT_MEMORY_TOKENS": "30",
        "MEMAGENT_RETRIES": "0",
    }
    here = ["hydra.run.dir=.", "hydra.output_subdir=null"]
    commands = [
        ["server", "host=127.0.0.1", f"port={port}", "key=secret-of-the-test",
         "default_proxy.model_name=policy"],
        ["controller", "runner_type=local", f"agl_server.url={url}", "agl_server.key=secret-of-the-test",
         "local_runner.poll_interval=0.2"],
    ]  # fmt: skip
    running = []
    try:
        for name, *options in commands:
            command = [sys.executable, "-m", f"agentlightning.{name}", *options, *here]
            running.append(subprocess.Popen(command, cwd=tmp_path, env=environment))
            if name == "server":
                await_answer(f"{url}/healthz")
        with httpx.Client(base_url=url, headers={"Authorization": "Bearer secret-of-the-test"}) as client:
            yield client
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)


def await_answer(url: str) -> None:
    for _ in range(300):
        try:
            httpx.get(url).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise TimeoutError(url)


def roll(lightning: httpx.Client, server: Server) -> tuple[str, list[dict[str, Any]]]:
    """The state of a rollout that has ended, and its events."""
    lightning.post("/api/models", json=[{"model": "policy", "endpoint": server.base_url}]).raise_for_status()
    local = {"agent_class": "lightning_agent:ReadingAgent", "env_map": {"EXAMPLE": "input"}}
    (rollout,) = lightning.post("/api/rollouts", json=[{"input": EXAMPLE, "config": {"local": local}}]).json()
    path = f"/api/rollouts/{rollout['rollout_id']}"
    for _ in range(600):
        state = lightning.get(path).json()["rollout"]["status"]["state"]
        if state in ("succeeded", "failed"):
            return state, lightning.get(f"{path}/events").json()
        time.sleep(0.1)
    raise TimeoutError(json.dumps(rollout))


def test_each_conversation_is_an_event_with_its_tokens(
    lightning: httpx.Client, serve: Callable[..., Server]
) -> None:
    server = serve(read)
    state, events = roll(lightning, server)
    *calls, reward = events
    assert (state, reward["event_type"], reward["data"]["value"]) == ("succeeded", "reward", 1.0)
    assert [call["event_type"] for call in calls] == ["model_request"] * len(server.asked) and len(calls) > 3
    for call, body in zip(calls, server.asked, strict=True):
        choice = call["data"]["response"]["choices"][0]
        assert choice["message"]["content"] == read(body["messages"]) and choice["token_ids"]
        assert body["temperature"] == 1.0  # the trainer's


def test_a_policy_that_says_nothing_earns_nothing(
    lightning: httpx.Client, serve: Callable[..., Server]
) -> None:
    server = serve(lambda messages: "Ada came." if "<chunk" in messages[-1]["content"] else "")
    state, events = roll(lightning, server)
    assert (state, events[-1]["data"]["value"]) == ("succeeded", 0.0)
    assert len(events) == len(server.asked) + 1 and server.paid_twice == 0
