"""The runner for Uni-Agent, with a session as its gateway gives it: an address, and one for the reward."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from memagent.errors import EngineError
from server import Fault, Messages, Server
from uni_agent_runner import read

EXAMPLE = {
    "id": "e1",
    "problem": "Who came?",
    "document": "\n\n".join(f"Nobody came at {hour} o'clock. Ada came later." for hour in range(30)),
    "answers": ["Ada"],
}
SETTINGS = {"workflow": "overwrite", "chunk_tokens": 100, "memory_tokens": 30}


@dataclass(frozen=True)
class Session:
    """What a runner is given."""

    session_id: str
    base_url: str
    reward_info_url: str


def reply(messages: Messages) -> str:
    return "Ada came." if "<chunk" in messages[-1]["content"] else "Ada"


def test_the_session_gets_the_conversations_and_the_reward(serve: Callable[..., Server]) -> None:
    rewards: list[dict[str, Any]] = []

    def take(body: dict[str, Any]) -> Fault:
        rewards.append(body)
        return Fault(body="{}")

    server = serve(reply, listed=None, pages={"/sessions/s1/reward_info": take})
    root = server.base_url.removesuffix("/v1")
    session = Session("s1", f"{root}/sessions/s1/v1", f"{root}/sessions/s1/reward_info")
    asyncio.run(
        read(
            session=session,
            raw_prompt=[],
            sample_index=0,
            tools_kwargs={"example": EXAMPLE},
            settings=SETTINGS,
        )
    )
    assert rewards == [{"reward_info": {"reward": 1.0}}]
    calls = [request for request in server.requests if request.path == "/sessions/s1/v1/chat/completions"]
    assert len(calls) > 3 and {frozenset(call.body) for call in calls} == {
        frozenset({"model", "messages", "max_tokens"})
    }


def test_a_gateway_that_fails_gets_no_reward(serve: Callable[..., Server]) -> None:
    server = serve(reply, lambda digest, attempt: Fault(400), listed=None)
    session = Session("s1", server.base_url, f"{server.base_url}/reward_info")
    with pytest.raises(EngineError):
        asyncio.run(read(session=session, tools_kwargs={"example": EXAMPLE}, settings=SETTINGS))
    assert not any(request.path.endswith("reward_info") for request in server.requests)
