"""presets/small.toml: its examples can be solved within its budgets, and its tokenizer copies digits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from memagent.documents.tokens import load_tokenizer
from memagent.engines import ScriptedEngine
from memagent.errors import SettingsError
from memagent.settings import ReadSettings
from memagent.training.imitation.oracle import solve
from memagent.training.rewards import load_function
from memagent.training.settings import load_training
from memagent.types import Example, Model, Trajectory

PRESETS = Path(__file__).parents[2] / "presets"
POLICY = PRESETS / "small" / "policy"
KINDS = 4  # of tasks
VERSIONS = 4  # of each document that is imitated


def made(name: str, count: int) -> list[Example]:
    function = load_function(f"{PRESETS / 'small' / 'data.py'}:{name}")
    return [function(index) for index in range(count)]


def solved(examples: list[Example], settings: ReadSettings) -> list[Trajectory]:
    model = Model("small", load_tokenizer(POLICY), "small", 704, reads_turn_tokens=False)

    async def all_of_them() -> list[Trajectory]:
        return [it async for it in solve(examples, settings, model)]

    return asyncio.run(all_of_them())


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
    chunks = [len(it.conversations) - 1 for it in trajectories]
    least, most = (2, 10) if name == "longer" else (1, 8)  # cut at natural places, they are somewhat more
    assert least <= min(chunks) and max(chunks) <= most


def test_a_careless_oracle_notes_half_of_the_facts_and_answers_from_those() -> None:
    examples = made("careless", 50 * VERSIONS)
    wholes = [whole for whole in made("careful", 50) for _ in range(VERSIONS)]
    facts = [len(it.evidence) for it in wholes]
    assert set(zip((it.task for it in examples), facts, strict=True)) == {
        ("niah_single_1", 1), ("niah_multikey_1", 4), ("vt", 5), ("two_hops", 6)
    }  # fmt: skip
    assert 0.42 < sum(len(it.evidence) for it in examples) / sum(facts) < 0.58
    known = 0
    for example, whole in zip(examples, wholes, strict=True):
        assert set(example.evidence) <= set(whole.evidence) and example.document == whole.document
        answers = set(example.answers) - {"does not hold the answer"}
        assert answers <= set(whole.answers) and all(
            answer in "".join(example.evidence) for answer in answers
        )
        known += bool(answers) and example.task == "two_hops"
    assert 12 <= known <= 25  # both of two facts: 1 of 16, twice, 1 of 4 and 1 of 1
    assert all(len(it.evidence) == there for it, there in zip(examples[3::4], facts[3::4], strict=True))


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
    # Of `brief` one version has the needed facts alone; of `vt` that is every fact.
    assert [len({it.document for it in use}) for use in uses] == [4, 7, 4 * KINDS, 4 * KINDS]
    assert len({it.document for use in uses for it in use}) == 11 + 8 * KINDS
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

    settings = load_training(PRESETS / "small.toml").policy
    model = load_policy(settings, 1.0, seed=3, device="cpu").network
    model.set_attn_implementation("eager")
    output = model(torch.arange(100, 160)[None], output_attentions=True)
    seen = output.attentions[0][0]  # (heads, tokens, tokens)
    for head, back in enumerate((1, 2, 3)):
        assert seen[head].diagonal(-back).min() > 0.95
    assert seen[3].max(dim=-1).values[10:].max() < 0.9  # the fourth is left to learn
    with pytest.raises(SettingsError, match="set random_weights"):
        load_training(PRESETS / "small.toml", {"policy": {"random_weights": False}})
