"""presets/small.toml: its examples bind the memory and can be solved, and its tokenizer copies digits."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from memagent.documents.tokens import load_tokenizer
from memagent.engines import ScriptedEngine
from memagent.errors import SettingsError
from memagent.settings import ReadSettings
from memagent.training.collecting import solve
from memagent.training.data import load_function
from memagent.training.oracle import MakeExpert, Oracle
from memagent.training.settings import load_training
from memagent.types import Completion, Example, Message, Model, Sampling, Trajectory

pytestmark = pytest.mark.slow

PRESETS = Path(__file__).parents[2] / "presets"
SMALL = PRESETS / "small"
TASKS = 3
WORKFLOWS = ("gated", "overwrite", "evidence")


def of(file: str, name: str) -> Any:
    return load_function(f"{SMALL / file}:{name}")


def make_examples(name: str, count: int) -> list[Example]:
    function = of("data.py", name)
    return [function(index) for index in range(count)]


def strip_thought(reply: str) -> str:
    """Without what was looked up first."""
    return reply.rpartition("</think>\n")[2]


def read_with(workflow: str, **changes: object) -> ReadSettings:
    preset = load_training(PRESETS / "small.toml").read
    templates = str(SMALL / f"{workflow}.toml")
    return preset.replace(
        workflow=workflow, templates=templates, **of("measure.py", "room_of")(workflow), **changes
    )


def solved(examples: list[Example], settings: ReadSettings, expert: MakeExpert = Oracle) -> list[Trajectory]:
    model = Model("small", load_tokenizer(SMALL / "policy"), "small", 1024, reads_turn_tokens=False)

    async def all_of_them() -> list[Trajectory]:
        return [trajectory async for trajectory in solve(examples, settings, model, expert=expert)]

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("name", ["careful", "longer", "held_out"])
def test_a_document_has_more_facts_than_the_memory_holds_and_a_question_needs_a_few(name: str) -> None:
    count = load_tokenizer(SMALL / "policy")
    room = load_training(PRESETS / "small.toml").read.memory_tokens
    for example in make_examples(name, 6 * TASKS):
        notes = of("data.py", "notes_of")(example.document)
        assert 16 <= len(notes) <= 24 and len(set(notes)) == len(notes)
        assert set(example.evidence) <= set(notes) and 1 <= len(example.evidence) <= 4
        assert count("\n".join(example.evidence)) < room < count("\n".join(notes))


def test_the_home_town_stands_before_its_mayor() -> None:
    for example in make_examples("longer", 12 * TASKS):
        if example.task == "two_hops":
            home, office = (example.document.index(note) for note in example.evidence)
            assert home < office


def test_a_question_is_looked_up_and_solved_as_far_as_the_notes_go() -> None:
    look_up, solve_from = of("data.py", "look_up"), of("data.py", "solve")
    town = ["of Ada Bo is Cu", "of Cu is Di Eb", "of Fi Go is Hu"]
    question = "Who is the mayor of the home town of Ada Bo?"
    assert solve_from(question, town) == (tuple(town[:2]), ("Di Eb",))
    assert solve_from(question, town[:1])[1] == solve_from(question, town[1:])[1] == ()
    assert look_up(question, [], town[2:]) == ["of Ada Bo"]
    assert look_up(question, [], town[:1]) == ["of Ada Bo is Cu.", "of Cu"]
    assert look_up(question, town[:1], town[1:]) == ["of Ada Bo is Cu", "of Cu is Di Eb."]
    numbers = ["for a-b is: 1", "for c-d is: 2", "for e-f is: 3"]
    question = "Which special magic numbers does the text give for e-f, x-y and a-b?"
    assert solve_from(question, numbers) == ((numbers[2], numbers[0]), ("3", "1"))
    assert solve_from(question.replace("e-f, x-y and a-b", "x-y"), numbers) == ((), ())
    assert look_up(question, numbers[:1], numbers[1:]) == ["for e-f is: 3.", "for x-y", "for a-b is: 1"]
    garbled = ["for e-f", "for e-f is: for"]
    assert solve_from(question, garbled) == ((), ()) and look_up(question, garbled, [])[0] == "for e-f"


def test_a_key_with_a_space_is_found_too() -> None:
    look_up, solve_from = of("data.py", "look_up"), of("data.py", "solve")
    note, question = (
        "for dry-dune buggy is: 12",
        "Which special magic number does the text give for dry-dune buggy?",
    )
    assert solve_from(question, [note]) == ((note,), ("12",))
    assert look_up(question, [], [note]) == [f"{note}."]
    assert solve_from(question, [f"{note} for a-b is: 3"]) == ((), ()), "two notes on a line are none"
    for index, key in ((39, "ad hoc-stopwatch"), (60, "ad hoc-meridian")):
        example = of("data.py", "example")(index, 1000, "measure 2")
        assert f"for {key}?" in example.problem and len(example.answers) == len(example.evidence) == 1


def test_documents_stay_small_and_then_grow_from_six_facts_to_twenty_four() -> None:
    growing = of("data.py", "growing")
    for first, facts, tokens in (
        (0, 6, 500),
        (3600, 6, 500),
        (6000, 15, 1750),
        (8400, 24, 3000),
        (12000, 24, 3000),
    ):
        for example in map(growing, range(first, first + TASKS)):
            assert abs(len(of("data.py", "notes_of")(example.document)) - facts) <= 1, "people have two each"
            assert tokens - 300 < example.length_tokens <= tokens
            assert example.haystack.startswith("the first half of the essays")


def test_forms_are_taught_without_a_choice_and_answers_from_all_that_is_needed() -> None:
    examples = [*make_examples("forms", 18 * TASKS), *make_examples("forms_brief", 18 * TASKS)]
    trajectories = solved(examples, read_with("gated"), of("oracle.py", "Noting"))
    assert len(trajectories) >= len(examples) - 1
    by_id = {example.id: example for example in examples}
    observed = expected = 0.0  # of the needed facts
    answered = dict.fromkeys(("niah_multikey_1", "niah_multiquery", "two_hops"), 0)
    for trajectory in trajectories:
        example = by_id[trajectory.example_id]
        notes = of("data.py", "notes_of")(example.document)
        needed = of("data.py", "solve")(example.problem, notes)[0]
        observed += len({*needed} & {*example.evidence})
        expected += len(needed) * len(example.evidence) / len(notes)
        for conversation in trajectory.conversations:
            text = conversation.completion.text
            if conversation.kind == "update":
                thought, _, reply = text.partition("</think>\n")
                assert thought.startswith("<think>"), "no token tells one kind of reply from another"
                looked_up = [line.removesuffix(".") for line in thought.removeprefix("<think>").split("\n")]
                assert reply == "UNCHANGED" or reply.split("\n") == looked_up
            else:
                prompt = conversation.messages[-1].content
                assert all(note in prompt for note in needed)
                answered[example.task] += 1
    assert 0.85 < observed / expected < 1.15, "as often as any other fact of the document"
    assert min(answered.values()) >= 10


@pytest.mark.parametrize("workflow", WORKFLOWS)
@pytest.mark.parametrize("name", ["careful", "undecided"])
def test_its_own_oracle_plays_every_workflow(workflow: str, name: str) -> None:
    examples = make_examples(name, 2 * TASKS)
    trajectories = solved(examples, read_with(workflow), of("oracle.py", "Noting"))
    assert [trajectory.reward for trajectory in trajectories] == [1.0] * len(trajectories)
    assert len(trajectories) >= len(examples) - 1, "a fact that is cut in two cannot be noted"
    by_id = {example.id: example for example in examples}
    for trajectory in trajectories:
        evidence = by_id[trajectory.example_id].evidence
        allowed = {"UNCHANGED", "nothing", *evidence, *(f'ADD "{note}"' for note in evidence)}
        updates = [
            strip_thought(conversation.completion.text)
            for conversation in trajectory.conversations
            if conversation.kind == "update"
        ]
        assert updates and {line for reply in updates for line in reply.split("\n")} <= allowed


def test_a_slip_is_not_imitated_but_what_follows_is() -> None:
    examples = make_examples("careful", 24 * TASKS)
    kept_slips, tidied_slips = 0, 0
    by_id = {example.id: example for example in examples}
    for trajectory in solved(examples, read_with("gated"), of("oracle.py", "Noting")):
        evidence, memory = by_id[trajectory.example_id].evidence, ""
        for conversation in trajectory.conversations:
            shown_memory = (
                conversation.messages[-1].content.partition("<memory>")[2].partition("</memory>")[0]
            )
            slipped = shown_memory != "nothing" and sorted(shown_memory.split("\n")) != sorted(
                memory.split("\n")
            )
            reply = strip_thought(conversation.completion.text)
            if conversation.kind == "update" and reply != "UNCHANGED":
                lines = reply.split("\n")
                assert set(lines) <= set(evidence) and len(set(lines)) == len(lines)
                tidied_slips += slipped
                memory = reply
            else:
                kept_slips += slipped
    assert kept_slips >= 10 and tidied_slips >= 3


def test_an_undecided_oracle_notes_any_facts_of_two_documents_in_three() -> None:
    undecided, careful = make_examples("undecided", 60 * TASKS), make_examples("careful", 60 * TASKS)
    assert all(example.rationale for example in careful)
    loose = [(example, whole) for example, whole in zip(undecided, careful, strict=True) if example != whole]
    for task in {example.task for example in careful}:
        assert 0.5 < sum(example.task == task for example, _ in loose) * TASKS / len(careful) < 0.8
    needed = others = 0
    for example, whole in loose:
        assert (example.document, example.problem, example.rationale) == (whole.document, whole.problem, "")
        assert example.answers == (
            of("data.py", "solve")(example.problem, example.evidence)[1] or ("does not hold the answer",)
        )
        needed += len({*example.evidence} & {*whole.evidence})
        others += len({*example.evidence} - {*whole.evidence})
    every = sum(len(whole.evidence) for _, whole in loose)
    facts = sum(len(of("data.py", "notes_of")(whole.document)) for _, whole in loose)
    assert 0.6 < (needed / every) / (others / (facts - every)) < 1.6


def test_passages_are_answered_from_as_far_as_they_tell() -> None:
    examples = make_examples("careful", 6 * TASKS)
    replies = [of("oracle.py", "from_passages")(example) for example in examples]
    answer_count = 0
    for example, trajectory in zip(examples, replies, strict=True):
        (conversation,) = trajectory.conversations
        prompt = conversation.messages[-1].content
        assert prompt.startswith(f"<problem>{example.problem}</problem>")
        if "The answer is" in trajectory.answer:
            answer_count += 1
            assert all(
                answer in prompt for answer in trajectory.answer.rpartition("is ")[2].rstrip(".").split(", ")
            )
    assert 0 < answer_count < len(examples)


def test_no_fact_is_cut_and_two_searches_show_what_is_needed() -> None:
    ask, passages_of = of("oracle.py", "ask_of_passages"), of("oracle.py", "passages_of")
    outcomes: dict[tuple[str, int, int], list[bool]] = {}
    for example in make_examples("held_out", 10 * TASKS):
        passages = passages_of(example.document)
        facts = of("data.py", "places_of")(example.document)
        assert all(
            any(example.document[start:end] in passage for passage in passages) for start, end in facts
        )
        for number, searches in ((4, 1), (8, 1), (4, 2), (8, 2)):
            (message,) = ask(example, number, searches)
            memory = message.content.partition("<memory>")[2].partition("</memory>")[0]
            assert len(memory.split("\n")) == number
            has_all = all(f"{note}." in memory for note in example.evidence)
            outcomes.setdefault((example.task, number, searches), []).append(has_all)
    shares = {key: sum(flags) / len(flags) for key, flags in outcomes.items()}
    for task in ("niah_multikey_1", "niah_multiquery"):
        assert min(shares[task, number, searches] for number in (4, 8) for searches in (1, 2)) >= 0.9
    assert shares["two_hops", 4, 1] < 0.5 and min(shares["two_hops", number, 2] for number in (4, 8)) >= 0.9


def test_half_of_the_lessons_of_two_hops_show_both() -> None:
    lessons = [lesson for lesson in make_examples("careful", 40 * TASKS) if lesson.task == "two_hops"]
    prompts = [
        of("oracle.py", "from_passages")(lesson).conversations[0].messages[-1].content for lesson in lessons
    ]
    both = [
        all(f"{note}." in prompt for note in lesson.evidence)
        for lesson, prompt in zip(lessons, prompts, strict=True)
    ]
    assert 0.4 <= sum(both) / len(both) <= 0.8


def test_a_masked_fact_is_completed_from_its_note() -> None:
    for example, whole in zip(
        make_examples("masked", 6 * TASKS), make_examples("longer", 6 * TASKS), strict=True
    ):
        assert example.document == whole.document and example.problem.endswith(" ____")
        sentence = example.problem.replace("____", example.answers[0])
        assert sentence in example.document and example.evidence[0] in sentence


def test_of_an_essay_as_it_is_a_name_of_its_first_sentence_is_masked() -> None:
    for example in make_examples("masked_essay", 12):
        assert example.evidence == (example.problem.replace("____", example.answers[0]),)
        assert example.document.startswith(example.evidence) and 500 < (example.length_tokens or 0) <= 2000
        assert of("data.py", "count_tokens")()(example.problem) <= 64 and not example.rationale


def test_training_and_tests_read_different_halves_of_the_essays() -> None:
    training, held_out = (
        {example.haystack.partition(":")[0] for example in make_examples(name, TASKS)}
        for name in ("longer", "held_out")
    )
    assert training == {"the first half of the essays"} and held_out == {"the second half of the essays"}
    sentences = [
        {*example.document.split(". ")}
        for name in ("longer", "held_out")
        for example in make_examples(name, 1)
    ]
    assert not sentences[0] & sentences[1]


def test_another_text_can_be_the_haystack(tmp_path: Path) -> None:
    novel = tmp_path / "novel.txt"
    novel.write_text("It was a dark night. " * 50)
    example = of("data.py", "example")(0, 1000, "a seed", str(novel))
    assert "It was a dark night." in example.document and example.haystack.startswith("novel.txt, sha256 ")
    assert example.length_tokens <= 1000


def test_no_two_uses_share_an_example() -> None:
    uses = [make_examples(name, 4 * TASKS) for name in ("careful", "longer", "held_out")]
    assert len({example.document for use in uses for example in use}) == 3 * 4 * TASKS
    assert make_examples("careful", TASKS) == [replace(example) for example in uses[0][:TASKS]]


@pytest.mark.parametrize(("answer", "score"), [("The answer is Di Eb.", 1.0), ("", 0.0)])
def test_what_a_reader_notes_is_counted(answer: str, score: float) -> None:
    town, other = "The home town of Ada Bo is Cu.", "The mayor of Cu is Di Eb."
    document = f"{town} Nothing.\n{other} A word more is there.\nNo fact is here, though it is long enough."
    example = Example(
        "id", "two_hops", "Who?", document, ("Di Eb",), length_tokens=29, evidence=("of Ada Bo is Cu",)
    )
    replies = iter(["of Ada Bo is Cu", "of Cu is Di Eb", "of Cu is Di Eb\nnone", answer])
    engine = ScriptedEngine(lambda _: next(replies))
    engine.model = replace(engine.model, count_tokens=lambda text: len(text.split()))
    settings = read_with("gated", chunk_tokens=11)
    assert asyncio.run(of("measure.py", "read")(example, engine, settings)) == {
        "score": score, "needed": 1, "needed noted": 1, "held": 0, "others": 1, "others noted": 1,
        "idle": 1, "idle writes": 1, "answer": answer,
    }  # fmt: skip


def test_a_thought_is_forced_at_each_chunk_and_samples_are_read_beside() -> None:
    document = "The home town of Ada Bo is Cu.\nNothing else is here."
    example = Example(
        "id", "two_hops", "Who?", document, ("Di",), length_tokens=12, evidence=("of Ada Bo is Cu",)
    )
    prompts: list[tuple[Message, ...]] = []
    seeds: list[int | None] = []

    class Seeing(ScriptedEngine):
        async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
            prompts.append(messages)
            seeds.append(sampling.seed)
            return await super().complete(messages, sampling)

    engine = Seeing(
        lambda messages: "for me</think>\nUNCHANGED" if messages[-1].content == "<think>" else "Di"
    )
    engine.model = replace(engine.model, count_tokens=lambda text: len(text.split()))
    read_all = of("measure.py", "read_all")
    row = asyncio.run(read_all(example, engine, read_with("gated", chunk_tokens=7), samples=2, thinks=True))
    assert row["needed noted"] == 0 and row["score"] == row["sampled"] == 0.0
    assert [message.content for messages in prompts for message in messages[1:]] == ["<think>"] * len(prompts)
    assert len(set(seeds)) == len(seeds) == 3 * 2, (
        "each its own, and a memory that stays empty is not answered from"
    )


def test_every_digit_is_a_token_and_every_name() -> None:
    count = load_tokenizer(SMALL / "policy")
    assert count("8618545") - count("861854") == 1 and count("1" * 30) == 30
    names = of("data.py", "names")()
    assert len(set(names)) == 256 and {count(f" {name}") for name in names} == {1}


def test_the_first_heads_start_by_seeing_the_tokens_before() -> None:
    torch = pytest.importorskip("torch")
    from memagent.training.optimization.policy import load_policy

    main = of("copying.py", "main")
    start = sys.modules[main.__module__].RANDOM_START
    settings = load_training(PRESETS / "small.toml", {"policy": start}).policy
    model = load_policy(settings, 1.0, seed=3, device="cpu").network
    model.set_attn_implementation("eager")
    output = model(torch.arange(100, 160)[None], output_attentions=True)
    attention = output.attentions[0][0]  # (heads, tokens, tokens)
    for head, back in enumerate((1, 2, 3)):
        assert attention[head].diagonal(-back).min() > 0.95
    for position in range(16, 60):
        assert (
            attention[3][position, position - 10 : position - 3].sum() > 0.9
            and attention[3][position].max() < 0.3
        )
    with pytest.raises(SettingsError, match="set random_weights"):
        load_training(PRESETS / "small.toml", {"policy": {**start, "random_weights": False}})
