"""`memagent rollout`: one attempt through a gateway that draws, records and trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memagent.cli import main
from server import Fault, Messages, Server, complete, ended, scripted_faults

ROW = {
    "id": "e1",
    "problem": "Who came?",
    "document": "\n\n".join(f"Nobody came at {hour} o'clock. Ada came later." for hour in range(30)),
    "answers": ["Ada"],
}
FLAGS = ("--workflow", "overwrite", "--chunk-tokens", "100", "--memory-tokens", "30", "--retries", "2")
Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def roll(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command on the row; gives its exit code and the line that it printed."""
    path = tmp_path / "row.json"
    path.write_text(json.dumps(ROW, indent=2), "utf-8")

    def run(server: Server, *flags: str) -> tuple[int, dict[str, Any]]:
        address = ("--base-url", server.base_url, "--model", "policy")
        code = main(["rollout", "--example", str(path), *address, *FLAGS, *flags])
        (line,) = capsys.readouterr().out.splitlines()
        return code, json.loads(line)

    return run


def read(messages: Messages) -> str:
    return "Ada came." if "<chunk" in messages[-1]["content"] else "Ada"


def test_an_attempt_is_one_line_with_its_reward(serve: Callable[..., Server], roll: Run) -> None:
    server = serve(read)
    code, line = roll(server)
    assert (code, line["example_id"], line["answer"], line["reward"], line["failure"]) == (
        0,
        "e1",
        "Ada",
        1,
        None,
    )
    kinds = [conversation["kind"] for conversation in line["conversations"]]
    assert kinds == ["update"] * (len(kinds) - 1) + ["answer"] and len(kinds) > 3
    prompts = [body["messages"] for body in server.asked]
    assert prompts == [conversation["messages"] for conversation in line["conversations"]]


def test_the_gateway_decides_how_replies_are_drawn(
    serve: Callable[..., Server], roll: Run, tmp_path: Path
) -> None:
    server = serve(read)
    config = tmp_path / "settings.toml"
    config.write_text('temperature = 0.5\ntop_p = 0.5\nseed = 3\nthinking = "on"\n', "utf-8")
    assert roll(server, "--config", str(config))[0] == 0
    assert {frozenset(body) for body in server.asked} == {frozenset({"model", "messages", "max_tokens"})}


@pytest.mark.parametrize(
    ("reply", "reward"),
    [(None, 0.0), ("I cannot help with that.", 0.0)],
    ids=["refusal", "refusing answer"],
)
def test_a_refusal_is_the_policy_s_and_not_asked_for_again(
    serve: Callable[..., Server], roll: Run, reply: str | None, reward: float
) -> None:
    def completion(body: dict[str, Any]) -> dict[str, Any]:
        response = complete(body, reply or "")
        response["choices"][0]["message"]["refusal"] = None if reply else "I cannot help with that."
        return response

    server = serve(completion=completion)
    code, line = roll(server)
    assert (code, line["reward"]) == (0, reward)
    assert server.paid_twice == 0 and len(server.paid) == len(line["conversations"])


@pytest.mark.parametrize(
    "fault",
    [ended("content_filter", 0), ended("content_filter", 0.5), ended("error", 0.5)],
    ids=["filtered", "filtered halfway", "failed halfway"],
)
def test_a_reply_that_was_recorded_is_not_asked_for_again(
    serve: Callable[..., Server], roll: Run, fault: Fault
) -> None:
    server = serve(read, scripted_faults(None, fault))
    code, line = roll(server)
    assert (code, line["reward"], line["answer"]) == (3, None, "")
    assert "finish_reason" in line["failure"] and len(server.asked) == 2


def test_a_failure_without_a_reply_is_tried_again(serve: Callable[..., Server], roll: Run) -> None:
    server = serve(read, scripted_faults(Fault(503, {"Retry-After": "0"})))
    assert roll(server)[1]["reward"] == 1
    server = serve(read, lambda digest, attempt: Fault(503, {"Retry-After": "0"}))
    code, line = roll(server)
    assert (code, line["reward"], len(server.asked)) == (3, None, 3) and "failed 3 times" in line["failure"]


def test_prompts_are_the_same_on_every_machine(
    serve: Callable[..., Server], roll: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prompts = []
    for home in ("here", "there"):
        for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
            monkeypatch.setenv(name, str(tmp_path / home))
        server = serve(read)
        roll(server)
        prompts.append([body["messages"] for body in server.asked])
    assert prompts[0] == prompts[1]
    assert {message["role"] for messages in prompts[0] for message in messages} == {"user"}


def test_what_is_no_example_and_no_gateway(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "row.json"
    for text, message in ((json.dumps([ROW]), "not a JSON object"), ('{"problem": "Who?"}', "document")):
        path.write_text(text, "utf-8")
        assert main(["rollout", "--example", str(path)]) == 2
        assert message in capsys.readouterr().err
    path.write_text(json.dumps(ROW), "utf-8")
    assert main(["rollout", "--example", str(path)]) == 2
    assert "--base-url" in capsys.readouterr().err
