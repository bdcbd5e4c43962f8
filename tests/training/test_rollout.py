"""Attempts for training: any workflow, with the ids and log-probabilities that were sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from facts import READING
from function_engine import FunctionEngine
from memagent.documents.opening import text_document
from memagent.errors import EngineError, SettingsError
from memagent.reading.read import Read
from memagent.reading.workflows import workflows
from memagent.settings import ReadSettings
from memagent.training.rewards import load_reward
from memagent.training.rollout import Rollout
from memagent.types import Completion, Conversation, Engine, Example, Sampling

EXAMPLES = [
    Example(f"e{number}", "mine", f"Who came at {number}?", f"Ada came at {number}. " * 40, ("Ada",), 160)
    for number in range(3)
]
SETTINGS = ReadSettings(workflow="gated", chunk_tokens=50, memory_tokens=6, answer_tokens=9, temperature=1.0)


def sampler(update: str = "Ada came.", answer: Callable[[str], str] | str = "Ada") -> FunctionEngine:
    """Replies with what it is given for an update and an answer; its tokens are words."""

    def reply(prompt: str) -> Completion:
        text = update if "<chunk" in prompt else answer
        text = text if isinstance(text, str) else text(prompt)
        words = text.split()[: engine.samplings[-1].max_tokens]
        ids = tuple(map(len, words)) or (0,)
        return Completion(" ".join(words), "stop", (1, 2, 3), ids, (-0.5,) * len(ids))

    engine = FunctionEngine(reply)
    return engine


def calls_of(engine: FunctionEngine) -> list[tuple[str, Sampling]]:
    return list(zip(engine.prompts, engine.samplings, strict=True))


def groups(engine: Engine, examples: Sequence[Example] = EXAMPLES, **options: Any) -> list[Any]:
    arguments = {"settings": SETTINGS, "reward": load_reward(), "attempts": 4, **options}
    seeds = [f"0/{number}" for number in range(len(examples))]
    return asyncio.run(Rollout(engine=engine, **arguments).groups(examples, seeds))


def read(example: Example, engine: Engine, settings: ReadSettings) -> list[Conversation]:
    async def run() -> list[Conversation]:
        return [
            conversation
            async for conversation in Read(
                example.problem, text_document(example.document, is_example=True), engine, settings
            )
        ]

    return asyncio.run(run())


def untimed(conversations: Sequence[Conversation]) -> list[Conversation]:
    return [replace(conversation, seconds=0.0) for conversation in conversations]


@pytest.mark.parametrize("only_verdicts", [True, False])
def test_where_only_verdicts_are_trained_the_answer_is_greedy(only_verdicts: bool) -> None:
    engine = FunctionEngine(
        lambda prompt: Completion("Yes", "stop", (1,), (2,), (-0.5,), alternatives={"Yes": -0.5, "No": -1.0}),
        judges="adapter",
    )
    settings = SETTINGS.replace(workflow="select", memory_tokens=30)
    groups(engine, EXAMPLES[:1], settings=settings, attempts=2, only_verdicts=only_verdicts)
    temperatures = {(sampling.verdict, sampling.temperature) for sampling in engine.samplings}
    assert temperatures == {(True, 1.0), (False, 0.0 if only_verdicts else 1.0)}


# A plug-in's may be installed beside ours, and need other replies.
OURS = [name for name in READING if workflows()[name].run.__module__.startswith("memagent.")]


@pytest.mark.parametrize("workflow", OURS)
def test_attempts_have_the_conversations_of_a_read(workflow: str) -> None:
    room = 30 if workflow in ("notes", "select") else 6  # for whole sentences with their places
    settings = SETTINGS.replace(workflow=workflow, memory_tokens=room)
    results = groups(sampler(), settings=settings)
    assert [group.example for group in results] == EXAMPLES
    for group in results:
        expected = untimed(read(group.example, sampler(), settings))
        assert expected and len(group.trajectories) == 4
        for attempt in group.trajectories:
            assert untimed(attempt.conversations) == expected
            assert (attempt.answer, attempt.reward, attempt.error) == ("Ada", 1.0, None)


@pytest.mark.parametrize("workflow", ["gated", "parallel", "map_reduce"])
def test_each_call_of_each_attempt_has_its_own_seed(workflow: str) -> None:
    engine, again, other = sampler(), sampler(), sampler()
    for one in (engine, again, other):
        one.model = replace(one.model, calls=8)
    for one in (engine, again):
        groups(one, settings=SETTINGS.replace(workflow=workflow))
    seeds = [sampling.seed for sampling in engine.samplings]
    assert len(set(seeds)) == len(seeds) > 40 and None not in seeds
    assert sorted(map(str, calls_of(again))) == sorted(map(str, calls_of(engine)))
    asyncio.run(Rollout(engine=other, settings=SETTINGS, reward=load_reward(), attempts=4)
                .groups(EXAMPLES, ["1/0", "1/1", "1/2"]))  # fmt: skip
    assert not {sampling.seed for sampling in other.samplings} & set(seeds)


def test_an_answer_has_its_own_limit() -> None:
    engine = sampler()
    groups(engine)
    limits = {("<chunk" in prompt, sampling.max_tokens) for prompt, sampling in calls_of(engine)}
    assert limits == {(True, 6), (False, 9)}
    assert {(sampling.temperature, sampling.top_p) for sampling in engine.samplings} == {(1.0, 1.0)}


def test_an_empty_answer_is_worth_nothing_and_is_trained_on() -> None:
    engine = sampler(answer=lambda prompt: "" if "at 1?" in prompt else "Ada")
    good, empty, _ = groups(engine)
    assert {attempt.reward for attempt in good.trajectories} == {1.0}
    for attempt in empty.trajectories:
        assert attempt.reward == 0.0 and attempt.error and "empty answer" in attempt.error
        assert len(attempt.conversations) == len(good.trajectories[0].conversations)
        answer = attempt.conversations[-1]
        assert (answer.kind, answer.chunk_index, answer.memory) == ("answer", None, "Ada came.")
        assert answer.completion.completion_ids == (0,) and answer.completion.logprobs == (-0.5,)
        assert "at 1?" in answer.messages[-1].content


def test_an_engine_that_fails_for_good_ends_the_rollout() -> None:
    def failing(prompt: str) -> str:
        if "at 2?" in prompt:
            raise EngineError("out of order")
        return "Ada"

    with pytest.raises(EngineError, match="out of order"):
        groups(sampler(answer=failing))


def test_the_longest_reply_for_its_limit_is_what_is_taken_off() -> None:
    (group, *_) = groups(sampler(update="one two three four five"), overlong_tokens=4)
    # A memory of 5 tokens of 6 is 3 of 4 into the buffer; the answer of 1 of 9 is not in it.
    assert [attempt.reward for attempt in group.trajectories] == [0.25] * 4
    talk = sampler(update="Ada", answer="Ada two three four five six seven")
    (group, *_) = groups(talk, overlong_tokens=4, reward=load_reward(scorer="substring_match"))
    assert [attempt.reward for attempt in group.trajectories] == [0.5] * 4


def test_a_thought_has_room_of_its_own_before_a_reply_is_overlong() -> None:
    settings = SETTINGS.replace(thinking="on", thinking_tokens=20)
    thoughtful = sampler(update="<think> one two three four five six seven </think> Ada")
    (group, *_) = groups(thoughtful, settings=settings, overlong_tokens=4)
    assert [attempt.reward for attempt in group.trajectories] == [1.0] * 4  # 10 tokens of 26


def test_a_failed_attempt_at_the_limit_is_worth_no_more_than_a_wrong_answer_there() -> None:
    cut = "one two three four five six seven eight nine ten"
    rewards = {
        reply: groups(sampler(answer=reply, update="Ada"), overlong_tokens=4)[0].trajectories[0].reward
        for reply in (cut, f"<think> {cut}", "<think> hm", "no")
    }
    assert rewards == {cut: -1.0, f"<think> {cut}": -1.0, "<think> hm": 0.0, "no": 0.0}


def test_an_example_whose_problem_is_too_long_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    long = replace(EXAMPLES[1], id="long", problem="Who " * 5000)
    first, none, last = groups(sampler(), [EXAMPLES[0], long, EXAMPLES[2]])
    assert none is None and first and last and len(last.trajectories) == 4
    assert [record.getMessage()[:40] for record in caplog.records] == [
        "long is skipped: the problem has 5000 to"
    ]


def test_attempts_keep_journals_where_they_are_wanted(tmp_path: Path) -> None:
    for _ in range(2):  # a run that was cut off makes its attempts again
        groups(sampler(), EXAMPLES[:1], attempts=2, traces=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0-0.jsonl", "0-0-1.jsonl"]
    lines = (tmp_path / "0-0-1.jsonl").read_text("utf-8").splitlines()
    assert len(lines) > 4 and '"Ada"' in lines[-1]


def test_no_call_is_wasted() -> None:
    engine = sampler("UNCHANGED")
    engine.model = replace(engine.model, calls=4)
    settings = SETTINGS.replace(lookahead=4, workflow="gated")
    rollout = Rollout(engine=engine, settings=settings, reward=lambda *_: 0.0)
    (group,) = asyncio.run(rollout.groups(EXAMPLES[:1], ["0"]))
    assert group
    (trajectory,) = group.trajectories
    assert len(engine.prompts) == len(trajectory.conversations) > 3


def test_a_reward_is_any_function_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def length(example, trajectory):\n    return len(trajectory.answer) / 10\n")
    (group, *_) = groups(sampler(answer="four"), reward=load_reward(f"{file}:length"))
    assert {attempt.reward for attempt in group.trajectories} == {0.4}
    wrong = {
        "mine": "names no function",
        f"{file}:no": "has no function 'no'",
        f"{tmp_path}/no.py:x": "there is no file",
        "no.module:x": "cannot be loaded",
    }
    for name, message in wrong.items():
        with pytest.raises(SettingsError, match=message):
            load_reward(name)


def test_what_was_sampled_is_kept() -> None:
    torch = pytest.importorskip("torch")
    from memagent.engines.torch.engine import TransformersEngine
    from memagent.training.data import load_data
    from memagent.training.optimization.learner import sequences_of
    from memagent.training.optimization.policy import load_policy
    from memagent.training.settings import load_training

    preset = load_training(Path(__file__).parents[2] / "presets" / "tiny.toml")
    policy = load_policy(preset.policy.replace(dtype="float32"), temperature=1.0, seed=0)
    data = load_data(preset.data.examples, 0, len)
    engine = TransformersEngine(policy.network, policy.tokenizer, window_tokens=256)
    settings = preset.read.replace(temperature=1.0, memory_tokens=3, answer_tokens=2)
    results = groups(engine, data.first(3), settings=settings)
    sequences = [
        sequence
        for group in results
        for attempt in group.trajectories
        for sequence in sequences_of(attempt, 1.0)
    ]
    assert len(sequences) == 3 * 4 * 4, "three chunks and an answer"
    for group in results:
        for attempt in group.trajectories:
            for conversation in attempt.conversations:
                ids = torch.tensor(
                    [conversation.completion.prompt_ids + conversation.completion.completion_ids]
                )
                with torch.no_grad():
                    logprobs = torch.log_softmax(policy.network(ids).logits[0], -1)
                first = len(conversation.completion.prompt_ids) - 1
                expected = [logprobs[first + n, token].item()
                            for n, token in enumerate(conversation.completion.completion_ids)]  # fmt: skip
                assert conversation.completion.logprobs == pytest.approx(expected, abs=1e-5)
                text = policy.tokenizer.decode(
                    conversation.completion.completion_ids, skip_special_tokens=True
                )
                assert text == conversation.completion.text
    assert len({sequence.completion_ids for sequence in sequences}) > 10, "they are random"
