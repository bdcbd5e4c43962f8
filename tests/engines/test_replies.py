"""What replies are worth: which are whole, which are cut, and which are failures."""

from __future__ import annotations

from typing import Any

import pytest

from memagent.engines.refusals import TransientError
from memagent.engines.replies import read_completion
from memagent.types import Sampling, Usage

LIMIT = Sampling(64)


def reply(content: Any, reason: Any = "stop", usage: Any = None, **message: Any) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": reason}
    return {"choices": [choice], "usage": usage}


@pytest.mark.parametrize(
    "reason",
    [
        "stop",
        "STOP",
        "eos",
        "eos_token",
        "end_turn",
        "stop_sequence",
        "COMPLETE",
        "FINISH_REASON_STOP",
        None,
        "",
    ],
)
def test_a_servers_own_word_for_a_normal_end_is_a_stop(reason: str | None) -> None:
    assert read_completion(reply("Yes.", reason), LIMIT).finish_reason == "stop"


@pytest.mark.parametrize("reason", ["length", "MAX_TOKENS", "max_output_tokens", "model_length"])
def test_a_servers_own_word_for_a_cut_is_a_length(reason: str) -> None:
    assert read_completion(reply("Yes, and", reason), LIMIT).finish_reason == "length"


def test_a_server_that_never_says_has_cut_what_has_all_its_tokens() -> None:
    assert read_completion(reply("Yes", None, {"completion_tokens": 64}), LIMIT).finish_reason == "length"
    assert read_completion(reply("Yes", None, {"completion_tokens": 63}), LIMIT).finish_reason == "stop"


@pytest.mark.parametrize(
    "reason",
    ["content_filter", "error", "tool_calls", "function_call", "abort", "SAFETY", "nonsense", 7, ["stop"]],
)
@pytest.mark.parametrize("content", [None, "", "Half of a"])
def test_any_other_end_is_a_failure_that_names_it(reason: Any, content: str | None) -> None:
    with pytest.raises(TransientError) as caught:
        read_completion(reply(content, reason), LIMIT)
    assert f"finish_reason {reason!r}" in str(caught.value)
    with pytest.raises(TransientError):
        read_completion(reply(content, reason), LIMIT, verbatim=True)


@pytest.mark.parametrize(
    "content", [None, "", "  \n", "\0", "\u200b\ufeff", [], [{"type": "text", "text": ""}]]
)
@pytest.mark.parametrize("reason", ["stop", "length", None])
def test_an_empty_reply_is_a_failure(content: Any, reason: str | None) -> None:
    message = "still thinking" if reason == "length" else "the reply is empty"
    with pytest.raises(TransientError, match=message):
        read_completion(reply(content, reason), LIMIT)


@pytest.mark.parametrize(
    ("completion", "message"),
    [
        (reply("<think>\nLet me see", "length"), "set `thinking` to on"),
        (reply("[THINK]Let me see", "length"), "set `thinking` to on"),
        (reply("<think>a</think>\n<think>b", "length"), "set `thinking` to on"),
        (reply(None, "length", reasoning_content="Let me see"), "set `thinking` to on"),
        (reply("", "length", reasoning="Let me see"), "set `thinking` to on"),
        (reply("<think>a</think>\n"), "nothing but a thought"),
        (reply("<think>a"), "nothing but a thought"),
        (reply("a\n</think>\n"), "nothing but a thought"),
        (reply(None, refusal="I will not do that."), "the model refused: I will not do that."),
        (reply(None, tool_calls=[{"id": "1"}]), "called a tool"),
    ],
)
def test_a_reply_without_an_answer_is_a_failure_that_says_what_it_has(completion: Any, message: str) -> None:
    with pytest.raises(TransientError, match=message):
        read_completion(completion, LIMIT)


def test_training_gets_what_the_model_sampled() -> None:
    for text in ("", "<think>Let me see"):
        assert read_completion(reply(text, "length"), LIMIT, verbatim=True).text == text


def test_a_thought_before_the_answer_stays_for_the_reader_of_the_reply() -> None:
    assert read_completion(reply("<think>a</think>b"), LIMIT).text == "<think>a</think>b"
    assert read_completion(reply("b", reasoning_content="a"), LIMIT).text == "b"


def test_content_in_parts_is_joined() -> None:
    parts = [
        {"type": "text", "text": "One, "},
        {"type": "image_url"},
        {"type": "reasoning", "text": "What comes next?"},
        "two, ",
        {"type": "output_text", "text": "three, "},
        {"text": "four."},
    ]
    assert read_completion(reply(parts), LIMIT).text == "One, two, three, four."


@pytest.mark.parametrize("content", [3, True, {"text": "a"}, [3], [{"text": 3}], [None]])
def test_content_of_another_kind_is_not_a_completion(content: Any) -> None:
    with pytest.raises(TransientError, match="no completion"):
        read_completion(reply(content), LIMIT)


@pytest.mark.parametrize(
    "usage",
    [
        3, "many", [], {"prompt_tokens": float("inf"), "completion_tokens": float("nan")},
        {"prompt_tokens": -1, "completion_tokens": "5"}, {"prompt_tokens": 1e30, "completion_tokens": None},
        {"prompt_tokens_details": 5}, {"prompt_tokens_details": {"cached_tokens": "all"}},
    ],
)  # fmt: skip
def test_invalid_usage_counts_as_no_usage(usage: Any) -> None:
    assert read_completion(reply("Yes.", usage=usage), LIMIT).usage == Usage()


def test_cached_tokens_are_counted() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    assert read_completion(reply("Yes.", usage=usage), LIMIT).usage == Usage(9, 2, 8)
    usage["prompt_tokens"] = 0
    assert read_completion(reply("Yes.", usage=usage), LIMIT).usage == Usage(0, 2, 0)


@pytest.mark.parametrize(
    "cached",
    [
        {"prompt_tokens_details": {"cached_tokens": 50}},
        {"prompt_tokens_details": {"cached_tokens": 50}, "cache_read_input_tokens": 50},
        {"prompt_tokens_details": None, "cache_read_input_tokens": 50},
    ],
)
def test_cached_tokens_that_are_counted_apart_are_added(cached: dict[str, Any]) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, **cached}
    assert read_completion(reply("Yes.", usage=usage), LIMIT).usage == Usage(59, 2, 50)


def test_a_reply_far_over_its_budget_is_a_failure_whatever_it_claims() -> None:
    with pytest.raises(TransientError, match=r"100,000 characters where 64 tokens were allowed"):
        read_completion(reply("word " * 20_000, usage={"completion_tokens": 5}), LIMIT)


def test_half_a_surrogate_pair_does_not_reach_a_file() -> None:
    assert (
        read_completion(reply("caf\u00e9 \ud83d\ude00 \ud83d"), LIMIT).text == "caf\u00e9 \U0001f600 \ufffd"
    )
