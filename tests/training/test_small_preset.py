"""presets/small.toml: its examples can be solved within its budgets, and its tokenizer copies digits."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from memagent.documents.tokens import load_tokenizer
from memagent.engines import ScriptedEngine
from memagent.errors import SettingsError
from memagent.settings import ReadSettings
from memagent.training.data import load_function
from memagent.training.oracle import MakePlayer, Oracle
from memagent.training.rollout import solve
from memagent.training.settings import load_training
from memagent.types import Example, Model, Trajectory

PRESETS = Path(__file__).parents[2] / "presets"
POLICY = PRESETS / "small" / "policy"
KINDS = 4  # of tasks
VERSIONS = 2  # of each document that is imitated


def made(name: str, count: int) -> list[Example]:
    function = load_function(f"{PRESETS / 'small' / 'data.py'}:{name}")
    return [function(index) for index in range(count)]


def solved(examples: list[Example], settings: ReadSettings, player: MakePlayer = Oracle) -> list[Trajectory]:
    window_tokens = 704 if player is Oracle else 1024
    model = Model("small", load_tokenizer(POLICY), "small", window_tokens, reads_turn_tokens=False)

    async def all_of_them() -> list[Trajectory]:
        return [it async for it in solve(examples, settings, model, player=player)]

    return asyncio.run(all_of_them())


NOTING = f"{PRESETS / 'small' / 'oracle.py'}:Noting"


@pytest.mark.parametrize(
    "workflow", ["gated", "overwrite", "heads", "evidence", "parallel", "tree", "reread"]
)
def test_its_own_oracle_plays_every_workflow(workflow: str) -> None:
    preset = load_training(PRESETS / "small.toml")
    noting = load_function(NOTING)
    budgets = {"heads": {"heads": 4, "memory_tokens": 96}, "evidence": {"memory_tokens": 256}}
    settings = preset.read.changed(
        workflow=workflow,
        templates=str(PRESETS / "small" / f"{workflow}.toml"),
        **budgets.get(workflow, {}),
    )
    examples = made("careful", 2 * KINDS)
    trajectories = solved(examples, settings, noting)
    assert [it.reward for it in trajectories] == [1.0] * len(examples)
    last = [it.conversations[-1].memory for it in trajectories]
    assert all(note in memory for it, memory in zip(examples, last, strict=True) for note in it.evidence)
    for example, trajectory in zip(examples, trajectories, strict=True):
        told = {"UNCHANGED", "nothing", *example.evidence, *(f'ADD "{it}"' for it in example.evidence)}
        updates = [it.completion.text for it in trajectory.conversations if it.kind == "update"]
        updates = [reply for reply in updates if reply not in ("ENOUGH", *questions(example))]
        assert updates and {line for reply in updates for line in reply.split("\n")} <= told


def questions(example: Example) -> list[str]:
    """What may be asked about an example: the beginning of a needed note, or the end of a variable's."""
    if example.task == "vt":
        return [f"= {note.rpartition(' = ')[2]}" for note in example.evidence]
    return [f"{note.partition(' is')[0]} is" for note in example.evidence if note in example.rationale]


def test_what_was_passed_over_is_asked_for_and_found_when_its_chunk_is_read_again() -> None:
    templates = str(PRESETS / "small" / "reread.toml")
    settings = load_training(PRESETS / "small.toml").read.changed(workflow="reread", templates=templates)
    examples, asked = made("careful", 10 * KINDS), 0
    trajectories = solved(examples, settings, load_function(NOTING))
    assert [it.reward for it in trajectories] == [1.0] * len(examples)
    for example, trajectory in zip(examples, trajectories, strict=True):
        replies = [
            (it.completion.text, it.memory)
            for it in trajectory.conversations
            if it.messages[-1].content.endswith("the question:\n")
        ]
        for (reply, memory), after in pairwise(replies):
            assert reply in questions(example)
            known = [note for note in example.evidence if reply in note]
            assert known and not any(note in memory for note in known)
            assert any(note in after[1] for note in known)
            asked += 1
    assert asked >= 10


def test_a_slip_is_not_imitated_but_what_follows_is() -> None:
    preset = load_training(PRESETS / "small.toml")
    examples = made("careful", 24 * KINDS)
    kept, tidied = 0, 0
    for example, trajectory in zip(
        examples, solved(examples, preset.read, load_function(NOTING)), strict=True
    ):
        assert trajectory.reward == 1.0
        memory = ""
        for it in trajectory.conversations:
            shown = it.messages[-1].content.partition("<memory>")[2].partition("</memory>")[0]
            slipped = shown != "nothing" and sorted(shown.split("\n")) != sorted(memory.split("\n"))
            reply = it.completion.text
            if it.kind == "update" and reply != "UNCHANGED":
                assert set(reply.split("\n")) <= set(example.evidence) and len(set(reply.split("\n"))) == len(
                    reply.split("\n")
                ), "a note is a fact of the document, noted once"
                tidied += slipped
                memory = reply
            else:
                kept += slipped
    assert kept >= 10 and tidied >= 3


@pytest.mark.parametrize("workflow", ["gated", "overwrite"])
@pytest.mark.parametrize("name", ["careless", "careful", "brief", "longer"])
def test_a_perfect_reader_solves_every_example_within_the_budgets(name: str, workflow: str) -> None:
    preset = load_training(PRESETS / "small.toml")
    settings = preset.read.changed(workflow=workflow, templates=str(PRESETS / "small" / f"{workflow}.toml"))
    if name == "brief":
        settings = settings.changed(chunk_tokens=preset.warm_start.chunk_tokens[1])
    examples = made(name, 7 * KINDS)
    trajectories = solved(examples, settings)
    assert [it.example_id for it in trajectories] == [it.id for it in examples]
    assert {it.reward for it in trajectories} == {1.0}
    chunks = [sum(one.kind == "update" for one in it.conversations) for it in trajectories]
    least, most = (2, 10) if name == "longer" else (1, 8)  # cut at natural places, they are somewhat more
    assert least <= min(chunks) and max(chunks) <= most


def test_a_careless_oracle_notes_all_facts_of_one_version_and_nothing_of_the_other() -> None:
    examples = made("careless", 20 * VERSIONS)
    wholes = made("careful", 20)
    assert {(it.task, len(it.evidence)) for it in wholes} == {
        ("niah_single_1", 1), ("niah_multikey_1", 4), ("vt", 5), ("two_hops", 6)
    }  # fmt: skip
    for number, whole in enumerate(wholes):
        attentive, other = examples[number * VERSIONS : (number + 1) * VERSIONS]
        assert attentive == replace(whole, id=attentive.id)
        assert other.document == whole.document and other.problem == whole.problem
        assert other.evidence == () and other.answers == ("does not hold the answer",)


def test_the_two_hops_stand_in_any_order_among_others_like_them() -> None:
    hops = [it for it in made("longer", 20 * KINDS) if it.task == "two_hops"]
    assert len(hops) == 20 and len({it.answers for it in hops}) == 20
    mayor_first = 0
    for example in hops:
        first, second = example.evidence
        assert example.document.index(first) < example.document.index(second)
        assert example.document.count("The mayor of ") == example.document.count("The home town of ") == 3
        mayor_first += first.endswith(f" is {example.answers[0]}")
        office = first if first.endswith(f" is {example.answers[0]}") else second
        home = second if office is first else first
        person, _, town = home.removeprefix("of ").partition(" is ")
        assert office == f"of {town} is {example.answers[0]}" and f"The mayor {office}." in example.document
        assert f"The home town {home}." in example.document and example.rationale == f"{home}. {office}."
        assert example.problem == f"Who is the mayor of the home town of {person}?"
    assert 4 <= mayor_first <= 16


def test_no_two_uses_share_an_example() -> None:
    uses = [made(name, 4 * KINDS) for name in ("careless", "brief", "longer", "held_out")]
    assert len({it.id for use in uses for it in use}) == 4 * 4 * KINDS
    assert [len({it.document for it in use}) for use in uses] == [8, 16, 4 * KINDS, 4 * KINDS]
    assert len({it.document for use in uses for it in use}) == 24 + 8 * KINDS
    assert made("careless", KINDS) == [replace(it) for it in uses[0][:KINDS]]


def test_what_updates_do_is_counted() -> None:
    counted = load_function(f"{PRESETS / 'small' / 'updates.py'}:counted")
    town, other = "The home town of Ada Bo is Cu.", "The mayor of Cu is Di Eb."
    document = f"{town} Nothing.\n{other} A word more is there.\nNo fact is here, though it is long enough."
    asked = Example("id", "two_hops", "Who?", document, ("Di",), length_tokens=29)
    notes = [town.removeprefix("The home town ").rstrip("."), other.removeprefix("The mayor ").rstrip(".")]
    replies = iter([notes[0], "\n".join([notes[1], notes[1]]), notes[1], "none"])
    engine = ScriptedEngine(lambda _: next(replies))
    engine.model = replace(engine.model, count_tokens=lambda text: len(text.split()))
    settings = load_training(PRESETS / "small.toml").read.changed(chunk_tokens=11)
    assert asyncio.run(counted(asked, engine, settings)) == {
        "facts": 2, "noted": 2, "idle": 1, "idle writes": 1, "writes": 3, "lines": 3, "lost": 1, "repeats": 1
    }  # fmt: skip


def test_every_digit_is_a_token_and_every_name() -> None:
    count = load_tokenizer(POLICY)
    assert count("8618545") - count("861854") == 1 and count("1" * 30) == 30
    names = load_function(f"{PRESETS / 'small' / 'data.py'}:names")()
    assert len(set(names)) == 256 and {count(f" {name}") for name in names} == {1}


def test_the_first_heads_start_by_seeing_the_tokens_before() -> None:
    torch = pytest.importorskip("torch")
    from memagent.training.optimization.policy import load_policy

    main = load_function(f"{PRESETS / 'small' / 'copying.py'}:main")
    start = sys.modules[main.__module__].RANDOM_START
    settings = load_training(PRESETS / "small.toml", {"policy": start}).policy
    model = load_policy(settings, 1.0, seed=3, device="cpu").network
    model.set_attn_implementation("eager")
    output = model(torch.arange(100, 160)[None], output_attentions=True)
    seen = output.attentions[0][0]  # (heads, tokens, tokens)
    for head, back in enumerate((1, 2, 3)):
        assert seen[head].diagonal(-back).min() > 0.95
    for place in range(16, 60):
        assert seen[3][place, place - 10 : place - 3].sum() > 0.9 and seen[3][place].max() < 0.3
    with pytest.raises(SettingsError, match="set random_weights"):
        load_training(PRESETS / "small.toml", {"policy": {**start, "random_weights": False}})
