"""Trajectories in files; and those of a model, chosen by their reward."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from function_engine import FunctionEngine
from memagent.engines.scripted import ScriptedEngine
from memagent.errors import EmptyAnswerError, EngineError, SettingsError
from memagent.settings import ReadSettings
from memagent.training.collecting import collect
from memagent.training.data import read_trajectories, write_trajectories
from memagent.training.rewards import load_reward
from memagent.training.rollout import Rollout
from memagent.types import Completion, Conversation, Engine, Example, Message, Trajectory

PROMPT = (Message("system", "Read."), Message("user", "“Chunk”\u2028 \ud800"))
MADE = Trajectory(
    "vt-1",
    (
        Conversation("update", 0, PROMPT, Completion("VAR A = 1"), "VAR A = 1"),
        Conversation("answer", None, PROMPT[1:], Completion("A\n"), "VAR A = 1"),
    ),
    "A",
    reward=0.5,
)
SETTINGS = ReadSettings(workflow="gated", temperature=1.0, seed=7, chunk_tokens=40)


async def each(*trajectories: Trajectory) -> AsyncIterator[Trajectory]:
    for trajectory in trajectories:
        yield trajectory


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    trajectories = [MADE, replace(MADE, example_id="vt-2", reward=None), replace(MADE, reward=1.0)]
    assert asyncio.run(write_trajectories(path, each(*trajectories))) == 3
    assert list(read_trajectories(path)) == trajectories
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


def test_a_row_has_what_is_imitated_and_no_token_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    asyncio.run(write_trajectories(path, each(MADE)))
    (row,) = map(json.loads, path.read_text().splitlines())
    assert set(row) == {"example_id", "answer", "reward", "conversations"}
    assert row["conversations"][0] == {
        "kind": "update",
        "chunk_index": 0,
        "messages": [{"role": "system", "content": "Read."}, {"role": "user", "content": PROMPT[1].content}],
        "reply": "VAR A = 1",
        "memory": "VAR A = 1",
    }


GOOD = {
    "example_id": "e",
    "answer": "a",
    "reward": 1,
    "conversations": [
        {"kind": "answer", "chunk_index": None, "memory": "", "reply": "a",
         "messages": [{"role": "user", "content": "x"}]}
    ],
}  # fmt: skip


def changed(change: Callable[[Any], None]) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(json.dumps(GOOD))
    change(row)
    return row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.pop("example_id"), "example_id: Field required"),
        (lambda row: row.update(answer=7), "answer: Input should be a valid string"),
        (lambda row: row.update(reward="good"), "reward: Input should be a valid number"),
        (lambda row: row.update(conversations={}), "conversations: Input should be a valid tuple"),
        (lambda row: row.update(conversations=[7]), "each of its conversations needs a reply"),
        (lambda row: row.update(conversations=7), "each of its conversations needs a reply"),
        (lambda row: row.pop("conversations"), "each of its conversations needs a reply"),
        (lambda row: row["conversations"][0].pop("reply"), "each of its conversations needs a reply"),
        (
            lambda row: row["conversations"][0].update(kind="guess"),
            r"conversations\.0\.kind: Input",
        ),
        (lambda row: row["conversations"][0].update(memory=None), r"conversations\.0\.memory: Input"),
        (lambda row: row["conversations"][0]["messages"][0].update(role="tool"), r"messages\.0\.role: Input"),
    ],
)
def test_a_row_that_is_not_a_trajectory_is_named(
    tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (GOOD, changed(change))))
    rows = read_trajectories(path)
    assert repr(next(rows).reward) == "1.0"
    with pytest.raises(SettingsError, match=f"row 2 is not a trajectory: .*{message}"):
        next(rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "holds no trajectories"), ("\n \n", "holds no trajectories"), ("{oops", "row 1 is not JSON"),
     ("[7]", "row 1 is not a JSON object")],
)  # fmt: skip
def test_a_file_without_trajectories_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        list(read_trajectories(path))


def test_a_file_that_is_not_there_or_cut_off_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        list(read_trajectories(tmp_path / "none.jsonl"))
    path = tmp_path / "a.jsonl.gz"
    asyncio.run(write_trajectories(path, each(*[MADE] * 500)))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SettingsError, match="cannot be read"):
        list(read_trajectories(path))


def answering(
    answer: Callable[[str, int | None], str], calls: int = 16
) -> tuple[FunctionEngine, list[int | None]]:
    """A model that answers as a function of problem and seed, and the seeds that it has answered with."""
    seeds: list[int | None] = []

    async def reply(prompt: str) -> str:
        seed = engine.samplings[-1].seed
        problem = re.split(r"<problem-\w+>\n", prompt)[1].split("\n")[0]
        await asyncio.sleep(0.001 * (len(problem) % 3))  # some take longer than others
        if "<chunk" in prompt:
            return "MEMORY\nAda did."
        seeds.append(seed)
        return answer(problem, seed)

    engine = FunctionEngine(reply, calls=calls)
    return engine, seeds


def rollout(engine: Engine, settings: ReadSettings) -> Rollout:
    return Rollout(engine=engine, settings=settings, reward=load_reward())


def collect_answers(
    engine: FunctionEngine, count: int = 6, settings: ReadSettings = SETTINGS, **options: Any
) -> list[tuple[str, str, float | None]]:
    these = [
        Example(f"e{n}", "mine", "Who?" + "?" * n, "Ada did. " * 50, ("Ada",), 100) for n in range(count)
    ]

    async def run() -> list[tuple[str, str, float | None]]:
        stream = collect(these, rollout(engine, settings), **options)
        return [(trajectory.example_id, trajectory.answer, trajectory.reward) async for trajectory in stream]

    return asyncio.run(run())


def test_what_is_worth_enough_is_kept_in_the_order_of_the_examples() -> None:
    engine, _ = answering(lambda problem, _: "Ada" if len(problem) % 2 else "Bob")
    assert collect_answers(engine) == [(f"e{n}", "Ada", 1.0) for n in (1, 3, 5)]
    both = collect_answers(engine, least_reward=0.0)
    assert [name for name, _, _ in both] == [f"e{n}" for n in range(6)]
    assert {reward for _, _, reward in both} == {0.0, 1.0}


def test_each_sample_has_its_own_seed() -> None:
    engine, seeds = answering(lambda *_: "Ada")
    collect_answers(engine, 2, samples=3)
    first = set(seeds)
    assert len(first) == 2 * 3 and None not in first
    seeds.clear()
    collect_answers(engine, 2, samples=3)
    assert set(seeds) == first, "the same settings give the same seeds"
    seeds.clear()
    collect_answers(engine, 1, SETTINGS.replace(seed=None), samples=2)
    assert seeds == [None, None]


@pytest.mark.parametrize("calls", [1, 3, 16])
def test_attempts_run_side_by_side_up_to_the_limit(calls: int) -> None:
    engine, _ = answering(lambda *_: "Ada", calls)
    assert len(collect_answers(engine, 20)) == 20
    assert calls / 4 < engine.busiest <= calls, "threads that count may hold some back"


def test_an_empty_answer_is_an_attempt_that_failed() -> None:
    engine, _ = answering(lambda problem, _: "" if len(problem) % 2 else "Ada")
    assert [name for name, _, _ in collect_answers(engine, least_reward=0.0)] == ["e0", "e2", "e4"]


def test_a_reply_that_was_cut_is_not_imitated() -> None:
    """Nothing tells where it would have ended, and imitation ends every reply."""
    example = Example("e", "mine", "Who?", "Ada did. " * 50, ("Ada",), 100)
    replies = {False: "MEMORY\n" + "so " * 40, True: "Ada"}
    engine = ScriptedEngine(lambda messages: replies["<chunk" not in messages[-1].content])

    async def run(memory_tokens: int) -> list[str]:
        settings = SETTINGS.replace(memory_tokens=memory_tokens)
        stream = collect([example], rollout(engine, settings))
        return [conversation.kind async for trajectory in stream for conversation in trajectory.conversations]

    assert asyncio.run(run(50)) == ["update"] * 3 + ["answer"]
    assert asyncio.run(run(30)) == ["answer"]


def test_an_engine_that_fails_ends_the_collection() -> None:
    def failing(problem: str, _: int | None) -> str:
        if len(problem) == 6:
            raise EngineError("out of order")
        return "Ada"

    engine, seeds = answering(failing, calls=4)
    with pytest.raises(EngineError, match="out of order"):
        collect_answers(engine, 30)
    assert engine.busy == 0 and len(seeds) < 10
    assert not issubclass(SettingsError, EmptyAnswerError)


def test_a_collection_that_is_left_early_leaves_nothing_behind() -> None:
    engine, seeds = answering(lambda *_: "Ada")

    async def run() -> int:
        problems = ["Why", *["Where"] * 8]  # the model is slower with the longer ones
        these = [Example(problem, "mine", problem, "Ada did. " * 50, ("Ada",), 100) for problem in problems]
        stream = collect(these, rollout(engine, SETTINGS))
        await anext(stream)
        await stream.aclose()
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1 and engine.busy == 0
    assert len(seeds) == 1, "those under way are given up"


def test_samples_that_would_all_be_the_same_are_refused() -> None:
    with pytest.raises(SettingsError, match="2 samples at temperature 0"):
        collect_answers(answering(lambda *_: "Ada")[0], 1, SETTINGS.replace(temperature=0.0), samples=2)
