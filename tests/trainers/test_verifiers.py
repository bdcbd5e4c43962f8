"""A rollout of verifiers' v1: its interception server before a scripted endpoint, our taskset and harness."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server import Messages, Server, count_tokens, ended, scripted_faults

vf = pytest.importorskip("verifiers.v1")
ours = pytest.importorskip("memagent_verifiers")

DOCUMENT = "\n\n".join(f"Nobody came at {hour} o'clock. Ada came later." for hour in range(30))
READ = {"workflow": "overwrite", "chunk_tokens": 100, "memory_tokens": 30}


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    path = tmp_path / "examples.jsonl"
    rows = [
        {"id": name, "problem": f"Who came, {name}?", "document": DOCUMENT, "answers": [name]}
        for name in ("Ada", "Bo")
    ]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return path


def roll(server: Server, examples: Path, attempts: int = 1, **read: Any) -> list[Any]:
    """The traces of attempts at the first example, as a trainer makes them."""

    async def run() -> list[Any]:
        config = vf.AgentConfig(
            harness={"id": "memagent-verifiers", "read": {**READ, **read}},
            runtime={"type": "subprocess"},
            client={"type": "eval", "base_url": server.base_url, "api_key_var": "NO_KEY"},
            model="policy",
            sampling={"temperature": 1.0},
        )
        taskset = ours.ReadingTaskset(ours.ReadingConfig(id="memagent-verifiers", examples=str(examples)))
        task = next(iter(taskset))
        async with vf.make_agent(config) as agent:
            return await asyncio.gather(*(agent.run(task) for _ in range(attempts)))

    return asyncio.run(run())


def read(messages: Messages) -> str:
    return "Ada came." if "<chunk" in messages[-1]["content"] else "Ada"


def test_each_conversation_is_a_branch(serve: Callable[..., Server], examples: Path) -> None:
    server = serve(read)
    (trace,) = roll(server, examples)
    assert (trace.reward, trace.info["answer"]) == (1.0, "Ada")
    assert len(trace.branches) == len(server.asked) > 3
    for branch, body in zip(trace.branches, server.asked, strict=True):
        prompt, reply = branch.messages
        assert [prompt.content] == [message["content"] for message in body["messages"]]
        assert branch.nodes[-1].sampled and not branch.nodes[0].sampled
        assert reply.content == read(body["messages"])
        assert body["temperature"] == 1.0  # the trainer's
        assert body.keys() == {"model", "messages", "max_tokens", "temperature"}


def test_the_token_mean_counts_each_reply_once(serve: Callable[..., Server], examples: Path) -> None:
    """One attempt of a group is right: its advantage is on every token of all its branches, no more."""
    answers = iter(["Ada", "Bo came, and some others"])

    def reply(messages: Messages) -> str:
        return "Ada came." if "<chunk" in messages[-1]["content"] else next(answers)

    server = serve(reply)
    traces = roll(server, examples, attempts=2)
    rewards = [trace.reward for trace in traces]
    assert sorted(rewards) == [0.0, 1.0]
    tokens = [[branch.num_output_tokens for branch in trace.branches] for trace in traces]
    chunks = len(tokens[0]) - 1
    update, right, wrong = map(count_tokens, ("Ada came.", "Ada", "Bo came, and some others"))
    assert sorted(map(sum, tokens)) == sorted([chunks * update + right, chunks * update + wrong])
    advantages = [reward - 0.5 for reward in rewards]
    mean = sum(a * n for a, own in zip(advantages, tokens, strict=True) for n in own) / sum(map(sum, tokens))
    assert mean == pytest.approx(0.5 * (right - wrong) / (2 * chunks * update + right + wrong))


def test_a_failure_is_the_trace_s_and_no_branch_is_tried_twice(
    serve: Callable[..., Server], examples: Path
) -> None:
    server = serve(read, scripted_faults(None, ended("content_filter", 0.5)))
    (trace,) = roll(server, examples)
    assert trace.errors and len(server.asked) == 2
    assert trace.reward is None or trace.reward == 0


def test_an_empty_answer_earns_nothing(serve: Callable[..., Server], examples: Path) -> None:
    server = serve(lambda messages: "Ada came." if "<chunk" in messages[-1]["content"] else "")
    (trace,) = roll(server, examples)
    assert (trace.reward, trace.errors) == (0.0, [])
    assert "empty answer" in trace.info["failure"] and len(trace.branches) == len(server.asked)
