"""The oracle plays the package's workflows perfectly, with the prompts of a real read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from function_engine import FunctionEngine
from memagent.documents.opening import text_document
from memagent.engines import ScriptedEngine
from memagent.errors import ContextOverflowError, EngineError, SettingsError
from memagent.prompts import GATED, OVERWRITE, UNCHANGED, Prompts
from memagent.reading.read import NOT_FOUND, Read
from memagent.settings import ReadSettings
from memagent.tasks import Recipe, examples
from memagent.training.collecting import solve
from memagent.training.oracle import REFUSAL, Oracle
from memagent.types import Conversation, Engine, Example, Message, Model, Sampling, Trajectory

TASKS = ("niah_single_1", "niah_multikey_1", "niah_multivalue", "niah_multiquery", "vt", "hqa", "squad")
NEEDLE = "One of the magic numbers for Ada is: 77."
OTHER = "Nothing of note."


def words(text: str) -> int:
    return len(text.split())


MODEL = Model("words", words, "words")


def settings(**more: Any) -> ReadSettings:
    return ReadSettings(
        **{"workflow": "gated", "chunk_tokens": 80, "memory_tokens": 120, "answer_tokens": 40, **more}
    )


def play(
    these: Iterable[Example], read_settings: ReadSettings, least_reward: float = 0.0
) -> list[Trajectory]:
    async def run() -> list[Trajectory]:
        return [
            trajectory async for trajectory in solve(these, read_settings, MODEL, least_reward=least_reward)
        ]

    return asyncio.run(run())


def read(example: Example, engine: Engine, read_settings: ReadSettings) -> list[Conversation]:
    async def run() -> list[Conversation]:
        return [
            conversation
            async for conversation in Read(
                example.problem,
                text_document(example.document, is_example=True),
                engine,
                read_settings,
                purpose="train",
            )
        ]

    return asyncio.run(run())


def make_examples(
    task: str, seed: int = 0, count: int = 4, length: int = 700, absent: float = 0.0
) -> list[Example]:
    recipe = Recipe(length_tokens=length, seed=seed, count_tokens=words, absent=absent)
    return list(examples(task, recipe, count))


def replies(trajectory: Trajectory) -> list[str]:
    """Without the word that tells a memory from UNCHANGED."""
    return [
        conversation.completion.text.removeprefix("MEMORY\n") for conversation in trajectory.conversations
    ]


def example(document: str, *evidence: str, answers: tuple[str, ...] = ("77",), task: str = "mine") -> Example:
    return Example("e", task, "Which number?", document, answers, words(document), evidence)


@pytest.mark.parametrize("workflow", ["gated", "overwrite"])
@pytest.mark.parametrize("task", [*TASKS, "fwe"])
def test_every_attempt_of_the_oracle_is_right_and_keeps_the_budgets(task: str, workflow: str) -> None:
    read_settings = settings(workflow=workflow)
    for seed in range(3):
        for trajectory in play(make_examples(task, seed), read_settings):
            assert trajectory.reward == 1 and trajectory.answer == replies(trajectory)[-1]
            *updates, answer = trajectory.conversations
            assert len(updates) > 4 and answer.kind == "answer"
            assert all(words(update.memory) < 120 for update in updates), (
                "the token that ends the reply has room"
            )
            assert {conversation.completion.finish_reason for conversation in trajectory.conversations} == {
                "stop"
            }


@pytest.mark.parametrize("workflow", ["gated", "overwrite"])
@pytest.mark.parametrize("task", ["niah_multivalue", "hqa", "fwe"])
def test_its_conversations_are_those_of_a_real_read_that_has_its_replies(task: str, workflow: str) -> None:
    read_settings = settings(workflow=workflow)
    for whole, trajectory in zip(make_examples(task), play(make_examples(task), read_settings), strict=True):
        again = read(whole, ScriptedEngine(replies(trajectory)), read_settings)
        assert [(conversation.messages, conversation.memory) for conversation in again] == [
            (conversation.messages, conversation.memory) for conversation in trajectory.conversations
        ]


@pytest.mark.parametrize("workflow", ["gated", "overwrite"])
def test_a_chunk_that_adds_nothing_leaves_the_memory(workflow: str) -> None:
    (chain,) = make_examples("vt", count=1, length=900)
    (trajectory,) = play([chain], settings(workflow=workflow, chunk_tokens=60))
    before, idle = "", []
    for conversation in trajectory.conversations[:-1]:
        chunk = conversation.messages[0].content.split("<problem")[0]
        evidence = [line for line in chain.evidence if line in chunk]
        lines = [*before.split("\n"), *evidence] if before else evidence
        after = "\n".join(lines)
        assert conversation.memory == after
        if not evidence:
            idle.append((conversation.completion.text, before))
        before = after
    assert len(idle) > 4 and before.split("\n") == [*chain.evidence]
    expected_reply = {"gated": lambda _: UNCHANGED, "overwrite": lambda memory: memory or "(empty)"}[workflow]
    assert [reply for reply, _ in idle] == [expected_reply(memory) for _, memory in idle]
    assert {"", before} < {memory for _, memory in idle}


@pytest.mark.parametrize("workflow", ["gated", "overwrite"])
def test_mistakes_are_not_imitated_but_recovering_from_them_is(workflow: str) -> None:
    others = [f"Nothing of note, {number} times." for number in range(40)]
    document = " ".join([*others[:20], "The hat of Ada is red.", NEEDLE, *others[20:]])
    whole, read_settings = example(document, NEEDLE), settings(workflow=workflow, chunk_tokens=30)

    async def run(mistakes: float) -> Trajectory:
        trajectories = solve(
            [replace(whole, problem="Which number has Ada?")],
            read_settings,
            MODEL,
            partial(Oracle, mistakes=mistakes),
        )
        (trajectory,) = [trajectory async for trajectory in trajectories]
        return trajectory

    right, erring = asyncio.run(run(0.0)), asyncio.run(run(1.0))
    assert erring.reward == 1 and erring.answer == right.answer == "77"
    assert len(right.conversations) > 5 > len(erring.conversations) == 2
    update, answer = erring.conversations
    update_memory, answer_memory = (
        re.split(r"</?memory-\w+>\n", conversation.messages[0].content)[1]
        for conversation in (update, answer)
    )
    assert update_memory.startswith("Nothing of note") and replies(erring)[0] == update.memory == NEEDLE
    lines = answer_memory.split("\n")
    assert lines[0] == NEEDLE and lines[1] in others
    some = asyncio.run(run(0.5))
    assert 2 < len(some.conversations) < len(right.conversations)
    assert replies(some) == replies(asyncio.run(run(0.5)))


def test_without_room_for_a_mistake_none_is_made() -> None:
    whole = example(" ".join([NEEDLE, *["A sentence of seven words is this."] * 20]), NEEDLE)

    async def run() -> Trajectory:
        read_settings = settings(chunk_tokens=30, memory_tokens=words(NEEDLE) + 2)
        (trajectory,) = [
            trajectory
            async for trajectory in solve([whole], read_settings, MODEL, partial(Oracle, mistakes=1.0))
        ]
        return trajectory

    trajectory = asyncio.run(run())
    assert {conversation.memory for conversation in trajectory.conversations} == {NEEDLE}


def test_several_answers_are_given_in_the_order_of_the_memory() -> None:
    for whole, trajectory in zip(
        make_examples("niah_multivalue"), play(make_examples("niah_multivalue"), settings()), strict=True
    ):
        answers = trajectory.answer.split(", ")
        assert sorted(answers) == sorted(whole.answers)
        assert answers == sorted(answers, key=whole.document.find)


@pytest.mark.parametrize("task", ["niah_single_2", "niah_multiquery", "hqa", "squad"])
def test_an_absent_answer_is_said_to_be_absent(task: str) -> None:
    for trajectory in play(make_examples(task, absent=1.0), settings()):
        assert {*replies(trajectory)} == {UNCHANGED}, "nobody is asked to answer from nothing"
        assert trajectory.answer == NOT_FOUND
        assert trajectory.reward == 1


def memories(whole: Example, *chunks: str, limit: int = 100) -> list[str]:
    """The memories of the oracle at these chunks."""
    oracle, history = Oracle(whole, OVERWRITE, MODEL), [""]
    for chunk in chunks:
        prompt = oracle.prompts.fill("update", problem=whole.problem, chunk=chunk, memory=history[-1])
        reply = asyncio.run(oracle.complete(prompt, Sampling(limit + 1))).text
        history.append(reply if reply != "(empty)" else "")
    return history[1:]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (["So. One of the magic numbers ", "for Ada is: 77. So."], ["One of the magic numbers", NEEDLE]),
        (["So. One of the magic numbers for Ada is: 7", "7. So."], [f"{NEEDLE[:-2]}", NEEDLE]),
        # The first words tell nothing yet; the rest is more than half of it.
        (["So. One of the ", "magic numbers for Ada is: 77. So."], ["", "magic numbers for Ada is: 77."]),
        # Neither is half of it, and the last has the answer.
        (["One of the ", "magic numbers ", "for Ada is: 77."], ["", "", "for Ada is: 77."]),
        (["One of the magic numbers", " for Ada", " is: 77."], [NEEDLE[:24], NEEDLE[:32], NEEDLE]),
    ],
)
def test_evidence_cut_by_a_border_is_put_together(chunks: list[str], expected: list[str]) -> None:
    assert memories(example("".join(chunks), NEEDLE), *chunks) == expected


def test_an_answer_cut_by_a_border_is_noted_however_small_its_first_piece_is() -> None:
    text = "Ben Nevis is a mountain, and the highest of all in Scotland."
    whole = example(f"So it goes: {text}", text, answers=("ben nevis",))
    assert memories(whole, "So it goes: Ben ", text.removeprefix("Ben ")) == ["Ben", text]


@given(
    st.lists(
        st.sampled_from(["Ada came.", "It rained!\n\n", "One, two", "x\r\n", "<b>", "  ", "é"]), max_size=30
    ),
    st.integers(0, 30),
    st.integers(1, 9),
)
def test_wherever_the_borders_fall_the_evidence_comes_together(parts: list[str], at: int, chunk: int) -> None:
    texts = [*parts[:at], NEEDLE, *parts[at:]]
    (trajectory,) = play([example(" ".join(texts), NEEDLE)], settings(chunk_tokens=chunk))
    assert trajectory.answer == "77"
    memory = trajectory.conversations[-1].memory
    assert NEEDLE.endswith(memory) and memory.endswith("77.")


def test_what_is_needed_least_is_dropped_when_the_memory_is_full() -> None:
    first = "Ada was born here. She had many friends in the town. She died, after all those years, at 77."
    second = "Bob knew her well."
    whole = example(f"{first}\n{OTHER}\n{second}", first, second)
    (trajectory,) = play([whole], settings(chunk_tokens=30, memory_tokens=18))
    last = "She died, after all those years, at 77."
    assert trajectory.conversations[-1].memory == f"Ada was born here.\n{last}\nBob knew her well."
    (trajectory,) = play([whole], settings(chunk_tokens=30, memory_tokens=10))
    assert (trajectory.conversations[-1].memory, trajectory.answer) == (last, "77")


def test_what_never_came_into_the_memory_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    whole = example(NEEDLE, NEEDLE)
    (trajectory,) = play([whole], settings(memory_tokens=words(NEEDLE) + 1))
    assert replies(trajectory) == [UNCHANGED], "the token that ends a reply has no room"
    assert trajectory.reward == 0
    assert play([whole], settings(memory_tokens=words(NEEDLE) + 1), least_reward=1.0) == []
    assert "e is left out" in caplog.text and "reward of 0.00" in caplog.text
    assert play([whole], settings(memory_tokens=words(NEEDLE) + 2), least_reward=1.0)[0].answer == "77"
    two = example(
        f"{NEEDLE}\nThe other of them is the well-known number: 8.",
        task="niah_multivalue",
        answers=("8", "77"),
    )
    two = replace(two, evidence=tuple(two.document.split("\n")))
    (trajectory,) = play([two], settings(memory_tokens=11))
    assert (trajectory.answer, trajectory.reward) == ("77", pytest.approx(2 / 3))


def test_a_comparison_is_answered_once_all_its_evidence_was_read() -> None:
    whole = example("Ada was tall.\nBob was tall.", "Ada was tall.", "Bob was tall.", answers=("yes",))
    assert play([whole], settings())[0].answer == "yes"
    refused = play([whole], settings(memory_tokens=5))[0].answer
    assert refused == REFUSAL == "The memory does not hold the answer."


@pytest.mark.parametrize("task", ["niah_single_1", "of my own"])
def test_a_rationale_comes_before_the_answer_and_only_where_there_is_one(task: str) -> None:
    whole = example("Ada is 77.\nBob slept.", "Ada is 77.", answers=("77",), task=task)
    whole = replace(whole, rationale="Ada is 77, it says.")
    (trajectory,) = play([whole], settings())
    assert (trajectory.answer, trajectory.reward) == ("Ada is 77, it says. The answer is 77.", 1.0)
    assert play([whole], settings(memory_tokens=1))[0].answer == NOT_FOUND


def test_the_same_words_are_noted_once() -> None:
    whole = example(
        "Ada. She was 77.\nBob slept.\nAda. She died.", "Ada.", "She was 77.", "Ada.", "She died."
    )
    (trajectory,) = play([whole], settings())
    assert trajectory.conversations[-1].memory == "Ada.\nShe was 77.\nShe died."
    assert play([replace(whole, answers=("yes",))], settings())[0].answer == "yes"


def test_a_title_is_noted_where_what_follows_it_stands() -> None:
    """The name alone stands in other chunks as well, and is no evidence there."""
    document = "Ada was seen. Ada was heard. And so on.\nAda\nShe came late. She was 77."
    (trajectory,) = play([example(document, "Ada", "She was 77.")], settings(chunk_tokens=9))
    assert replies(trajectory) == [UNCHANGED, "Ada\nShe was 77.", "77"]


@pytest.mark.parametrize("chunk_tokens", [5, 6, 7, 8, 9, 40])
def test_text_that_could_pass_for_the_prompt_is_read_as_any_other(chunk_tokens: int) -> None:
    strange = "<chunk> is </problem\n> and [INST] \x07 \ud800 <|im_end|>: 77."
    whole = example(f"A <memory\n> b. \x00 \x0c c <chunk> d\n\n \n\n{strange} </s> and < more", strange)
    (trajectory,) = play([whole], settings(chunk_tokens=chunk_tokens))
    assert trajectory.answer == "77" and "<|im_end|>: 77." in trajectory.conversations[-1].memory


def test_a_user_s_prompts_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'system = "{x}"\nempty_memory = "nothing"\n'
        'update = "{{x}} {memory} {problem} {chunk} | {chunk}"\nanswer = "{memory} {problem}"\n'
    )
    whole = example(f"{OTHER} {OTHER} {OTHER}\n\n{NEEDLE}", NEEDLE)
    (trajectory,) = play([whole], settings(templates=str(path), workflow="overwrite", chunk_tokens=14))
    assert replies(trajectory)[0] == "nothing" and trajectory.conversations[-1].memory == NEEDLE[17:]
    assert trajectory.answer == "77"


def test_chunks_that_are_halved_are_followed() -> None:
    whole = example(" ".join([OTHER] * 60 + [NEEDLE] + [OTHER] * 20), NEEDLE)
    oracle = Oracle(whole, GATED, MODEL)

    def refuse(prompt: str) -> None:
        if words(prompt) > words(GATED.update) + 60:
            raise ContextOverflowError("too long")

    steps = read(whole, FunctionEngine(refuse, oracle), settings(chunk_tokens=300))
    assert len(steps) > 4 and steps[-1].completion.text == "77"
    assert steps[-1].memory == NEEDLE


def test_a_prompt_of_another_read_is_refused() -> None:
    whole = example(f"{OTHER} {NEEDLE}", NEEDLE)
    oracle = Oracle(whole, GATED, MODEL)
    with pytest.raises(EngineError, match="did not write the memory"):
        read(whole, oracle, settings(workflow="overwrite"))
    with pytest.raises(EngineError, match="did not write the memory"):
        asyncio.run(
            oracle.complete(
                oracle.prompts.fill("answer", problem=whole.problem, memory="Another memory."), Sampling(9)
            )
        )
    system = (
        Message("system", "Hurry."),
        *oracle.prompts.fill("update", problem=whole.problem, chunk=OTHER, memory=""),
    )
    with pytest.raises(EngineError, match="did not write the memory"):
        asyncio.run(oracle.complete(system, Sampling(9)))
    other = oracle.prompts.fill("update", problem=whole.problem, chunk="Something else.", memory="")
    with pytest.raises(EngineError, match="not in the document"):
        asyncio.run(oracle.complete(other, Sampling(9)))


def test_a_sentence_that_sounds_idle_is_noted_like_any_other() -> None:
    idle = "The text does not provide any information."
    whole = example(f"{idle} {OTHER} {OTHER} {NEEDLE} {OTHER}", idle, NEEDLE)
    (trajectory,) = play([whole], settings(chunk_tokens=7))
    memories = [conversation.memory for conversation in trajectory.conversations]
    assert (
        memories[0] and idle.startswith(memories[0]) and NEEDLE in memories[-1] and trajectory.answer == "77"
    )


@pytest.mark.parametrize("evidence", [(), ("Not there.",), (NEEDLE, OTHER)])
def test_an_example_that_cannot_be_solved_is_an_error(evidence: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match=r"e has no evidence|e: the evidence .* is not in the document"):
        play([example(f"{OTHER} {NEEDLE}", *evidence)], settings())


def test_a_tally_is_cut_to_the_memory_and_counts_what_was_seen() -> None:
    document = "aaa ... bbb aaa ... ccc ... bbb aaa ddd aaa ccc"
    whole = example(document, answers=("aaa", "bbb"), task="fwe")
    chunks = document[:24], document[24:]
    assert memories(whole, *chunks) == ["aaa 2, bbb 1, ccc 1", "aaa 4, bbb 2, ccc 2, ddd 1"]
    assert memories(whole, *chunks, limit=4) == ["aaa 2, bbb 1", "aaa 4, bbb 2"]
    (trajectory,) = play([whole], settings())
    assert replies(trajectory) == ["aaa 4, bbb 2, ccc 2, ddd 1", "aaa, bbb"]


def test_a_tally_has_four_times_the_words_that_are_asked_for() -> None:
    entries = [f"{number}. word-{number % 9} of {number % 9}" for number in range(30)]
    whole = example(" ".join(entries), answers=("word-0 of 0", "word-1 of 1"), task="cwe")
    first, second = " ".join(entries[:8]) + " ", " ".join(entries[8:])
    assert memories(whole, first)[0].split(", ")[-1] == "word-7 of 7 1"
    assert memories(whole, first, second)[1].split(", ")[:4] == [f"word-{n} of {n} 4" for n in (0, 1, 2)] + [
        "word-3 of 3 3"
    ]


def test_prompts_with_the_same_end_are_distinguished() -> None:
    """Templates in which nothing but the slots stands."""
    bare = Prompts(update="{problem}{memory}{chunk}", answer="{memory}{problem}")
    whole = example(f"{OTHER} {NEEDLE}", NEEDLE)
    oracle = Oracle(whole, bare, MODEL)
    update = oracle.prompts.fill("update", problem=whole.problem, chunk=whole.document, memory="")
    assert asyncio.run(oracle.complete(update, Sampling(90))).text == NEEDLE
    assert (
        asyncio.run(
            oracle.complete(bare.fill("answer", problem=whole.problem, memory=NEEDLE), Sampling(90))
        ).text
        == "77"
    )
    assert OVERWRITE.fill("answer", problem="a", memory="b") != bare.fill("answer", problem="a", memory="b")
