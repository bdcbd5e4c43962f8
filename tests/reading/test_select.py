"""A verdict on every chunk: what the model says helps is kept, whatever words it shares with the question."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest

from facts import run, section
from function_engine import FunctionEngine
from memagent import (
    Completion,
    Conversation,
    Document,
    Read,
    ReadSettings,
    Result,
    open_document,
    text_document,
)
from memagent.concurrency import drain
from memagent.documents.tokens import estimate_tokens
from memagent.prompts import AUTO
from memagent.reading.excerpts import excerpts_of
from memagent.reading.read import NOT_FOUND
from memagent.reading.verdicts import log_odds
from memagent.reading.workflows.select import FIRST
from memagent.types import ESTIMATE

PROBLEM = "Which instruments does the teacher own?"
FACTS = (
    "A cello stands in the hall of Ida Berg.",
    "She has bought a flute.",
    "An old harp came from her aunt.",
)
TRAP = "The teacher does own no instruments, which instruments does any teacher own?"
DOCUMENT = "\n\n".join(
    f"Rain fell on hill {number}. Sheep went by road {number}. A cart stood near barn {number}. {more}"
    for number, more in enumerate(["", FACTS[0], "", TRAP, FACTS[1], "", FACTS[2], ""])
)
IN_THE_TEXTS_WORDS = DOCUMENT.replace(FACTS[0], "Instruments of the teacher: a cello.")
SETTINGS = ReadSettings(
    workflow="select", chunk_tokens=40, memory_tokens=200, answer_tokens=40, likeliest_chunks=0
)
INSTRUMENTS = ("cello", "flute", "harp")


def say(odds: float) -> Completion:
    """A verdict with these log-odds."""
    no = -math.log1p(math.exp(odds))
    alternatives = {"Yes": odds + no, "No": no, " yes": -30.0}
    return Completion("Yes" if odds > 0 else "No", "length", alternatives=alternatives)


def judge(text: str, known: str = "") -> float:
    """The log-odds of a model that knows what an instrument is."""
    return max(
        (4.0 - 1.2 * number for number, instrument in enumerate(INSTRUMENTS) if instrument in text),
        default=-5.0,
    )


def reader(judges: bool = True, calls: int = 4, verdict: object = judge) -> FunctionEngine:
    """Gives verdicts, and answers with the instruments that it is shown."""

    def reply(prompt: str) -> Completion | str:
        if text := section(prompt, "text"):
            return say(verdict(text, section(prompt, "known"))) if callable(verdict) else "No"
        return ", ".join(
            instrument for instrument in INSTRUMENTS if instrument in section(prompt, "document")
        )

    return FunctionEngine(
        reply,
        count_tokens=estimate_tokens,
        tokenizer=ESTIMATE,
        calls=calls,
        judges="trained" if judges else "",
    )


def read(
    engine: FunctionEngine | None = None, text: str = DOCUMENT, **settings: object
) -> tuple[Result, list[Conversation]]:
    return run(
        engine or reader(), text_document(text, "a.txt"), SETTINGS.replace(**settings), problem=PROBLEM
    )


def test_the_model_decides_what_is_kept_and_words_do_not() -> None:
    engine = reader()
    result, (*updates, answer) = read(engine)
    assert (result.found, result.doubtful, result.answer) == (True, False, "cello, flute")
    assert all(update.kind == "update" and update.verdict is not None for update in updates)
    assert result.cut == 0, "a verdict is one word"
    assert all(sampling.verdict and sampling.max_tokens == 1 for sampling in engine.samplings[:-1])
    assert not engine.samplings[-1].verdict
    assert all(fact in result.memory for fact in FACTS)
    sources = [excerpt.source for excerpt in excerpts_of(result.memory)]
    assert all(
        DOCUMENT[source.start : source.end] == source.excerpt and source.file == "a.txt" for source in sources
    )
    assert TRAP not in section(answer.messages[-1].content, "document")


def test_the_answer_is_made_from_the_best_and_what_is_nearly_as_good() -> None:
    _, (*_, answer) = read()
    passages = section(answer.messages[-1].content, "document")
    assert FACTS[0] in passages and FACTS[1] in passages and FACTS[2] not in passages  # 4.0, 2.8 and 1.6


def test_nothing_is_answered_where_a_trained_model_says_that_nothing_helps() -> None:
    result, conversations = read(reader(verdict=lambda *_: -2.0))
    assert (result.found, {conversation.kind for conversation in conversations}) == (False, {"update"})
    result, conversations = read(reader(judges=False, verdict=lambda *_: -2.0))
    assert conversations[-1].kind == "answer"  # only the order of its verdicts can be relied on
    assert conversations[-1].doubtful == result.doubtful


@pytest.mark.parametrize("likeliest", [0, 2])
def test_a_trained_model_may_decline_if_the_document_lacks_a_name_of_the_problem(likeliest: int) -> None:
    for problem, doubtful in ((PROBLEM, False), (f"{PROBLEM} And in Oslo?", True)):
        settings = SETTINGS.replace(likeliest_chunks=likeliest)
        result, (*_, answer) = run(reader(), text_document(DOCUMENT), settings, problem=problem)
        assert ("not in the document" in answer.messages[-1].content) == result.doubtful == doubtful


def test_a_name_may_be_in_the_memory_that_a_read_starts_from_or_in_a_file_name_or_passed_over(
    tmp_path: Path,
) -> None:
    problem = f"{PROBLEM} And in Oslo?"
    (tmp_path / "Oslo.txt").write_text(DOCUMENT)
    (tmp_path / "b.txt").write_text("Sheep went by.")
    told, _ = run(reader(), text_document(FACTS[1].replace("bought", "bought in Oslo"), "b.txt"), SETTINGS)

    def is_doubtful(document: Document, settings: ReadSettings = SETTINGS, memory: str = "") -> bool:
        read = Read(problem, document, reader(), settings, memory=memory)
        asyncio.run(drain(aiter(read)))
        return read.doubtful

    assert is_doubtful(text_document(DOCUMENT, "a.txt"))
    assert not is_doubtful(text_document(DOCUMENT, "a.txt"), memory=told.memory)
    assert not is_doubtful(open_document(tmp_path))
    assert not is_doubtful(text_document(DOCUMENT, "a.txt"), SETTINGS.replace(screen=True))


def test_the_memory_stays_within_its_budget_and_the_best_is_whole() -> None:
    result, _ = read(memory_tokens=60)
    assert estimate_tokens(result.memory) <= 60
    assert FACTS[0] in result.memory


def test_a_source_is_the_sentence_that_says_it_and_not_all_that_is_kept_around_it() -> None:
    engine = FunctionEngine(
        lambda prompt: say(judge(text)) if (text := section(prompt, "text")) else "In the hall of Ida Berg.",
        count_tokens=estimate_tokens,
        judges="trained",
    )
    result, _ = read(engine)
    (statement,) = result.statements
    assert FACTS[0] != result.memory and statement.source
    assert statement.source.excerpt == FACTS[0]
    assert DOCUMENT[statement.source.start : statement.source.end] == FACTS[0]


def test_if_one_of_the_likeliest_chunks_helps_clearly_no_other_is_read() -> None:
    result, (*updates, answer) = read(text=IN_THE_TEXTS_WORDS, likeliest_chunks=3)
    assert (len(updates), result.answer, result.stopped_early) == (3, "cello", True)
    assert result.chunks == 3 and answer.kind == "answer"
    assert [update.chunk_index for update in updates] == sorted(update.chunk_index for update in updates)


@pytest.mark.parametrize(("verdict", "judged"), [(1.1, FIRST), (0.9, 6), (0.4, 7)])
def test_the_likeliest_few_may_be_enough(verdict: float, judged: int) -> None:
    helps = reader(verdict=lambda text, _: verdict if "cello" in text else -5.0)
    _, (*updates, _) = read(helps, text=IN_THE_TEXTS_WORDS, likeliest_chunks=6)
    assert len(updates) == judged


def test_more_of_the_likeliest_are_judged_before_the_others() -> None:
    sheep = " Sheep went by on the road. A cart stood near the old barn. Rain fell on the town and the hill."
    openings = ["Which instruments does a teacher own?"] * 5 + ["A teacher has a harp."] + ["Nobody."] * 3
    text = "\n\n".join(opening + sheep for opening in openings)
    result, (*updates, _) = read(text=text, likeliest_chunks=6)
    assert (len(updates), result.answer, result.stopped_early) == (6, "harp", True)


def test_that_nothing_helps_is_not_said_before_all_chunks_are_read() -> None:
    last = reader(verdict=lambda text, _: 3.0 if "harp" in text else 0.4 if "does own" in text else -5.0)
    result, (*updates, _) = read(last, likeliest_chunks=2)
    assert (result.answer, len(updates), result.stopped_early) == ("harp", 7, False)
    assert len({update.chunk_index for update in updates}) == 7
    nothing = reader(verdict=lambda *_: -2.0)
    result, updates = read(nothing, likeliest_chunks=2)
    assert (result.found, len(updates), result.stopped_early) == (False, 7, False)


@pytest.mark.parametrize("settings", [{"rounds": 2}, {"screen": True}, {"likeliest_chunks": 0}])
def test_all_chunks_are_read_if_more_than_an_answer_is_wanted(settings: dict[str, object]) -> None:
    result, _ = read(text=IN_THE_TEXTS_WORDS, **{"likeliest_chunks": 2} | settings)
    assert (result.chunks, result.stopped_early) == (7, False)


def test_a_model_that_was_not_trained_to_judge_is_never_sure() -> None:
    result, conversations = read(reader(judges=False), likeliest_chunks=2)
    assert (len(conversations), result.stopped_early) == (8, False)


def test_one_chunk_has_to_help_and_those_nearly_as_good_are_kept_beside_it() -> None:
    def verdicts(cello: float, flute: float, harp: float) -> Result:
        odds = {"cello": cello, "flute": flute, "harp": harp}
        judging = reader(verdict=lambda text, _: next((odds[word] for word in odds if word in text), -5.0))
        return read(judging)[0]

    assert verdicts(0.0, -1.0, -4.0).answer == "cello, flute"
    assert verdicts(3.0, 0.0, -4.0).answer == "cello"
    assert "flute" in verdicts(3.0, 0.0, -4.0).memory, "it helps, but is not nearly as good"
    nothing = verdicts(-0.5, -0.6, -0.7)
    assert (nothing.memory, nothing.answer, nothing.given_up) == ("", NOT_FOUND, 0)


@pytest.mark.parametrize("position", [0, 5, 9])
def test_the_chunk_that_helps_is_kept_wherever_it_stands_among_more_that_share_words(position: int) -> None:
    texts = [
        f"Which instruments does the teacher own, they asked on hill {number}." * 2 for number in range(9)
    ]
    texts.insert(position, "A harp came from her aunt. Sheep went by on the road, and rain fell.")
    judging = reader(verdict=lambda text, _: 0.0 if "harp" in text else -0.5)
    result, _ = read(judging, "\n\n".join(texts))
    assert "harp" in result.answer and result.given_up == 0


def test_a_read_that_stopped_early_resumes(tmp_path: Path) -> None:
    trace, document = tmp_path / "read.jsonl", text_document(DOCUMENT, "a.txt")
    settings = SETTINGS.replace(likeliest_chunks=6)
    whole, _ = run(reader(), document, settings, problem=PROBLEM, trace=trace)
    again = reader()
    result, _ = run(again, document, settings, problem=PROBLEM, trace=trace, resume=True)
    assert again.prompts == [] and whole.stopped_early
    assert (result.answer, result.chunks, result.stopped_early) == (whole.answer, FIRST, True)
    more = reader()
    result, _ = run(
        more, document, settings.replace(likeliest_chunks=0), problem=PROBLEM, trace=trace, resume=True
    )
    assert (len(more.prompts), result.chunks, result.stopped_early) == (4, 7, False)


def test_a_second_round_sees_what_is_known() -> None:
    def verdict(text: str, known: str) -> float:
        if "cello" in text:
            return 2.0
        return 6.0 if "harp" in text and "cello" in known else -5.0

    result, conversations = read(reader(verdict=verdict), rounds=2)
    assert (result.answer, len(conversations)) == ("harp", 2 * 7 + 1)
    once, _ = read(reader(verdict=verdict))
    assert once.answer == "cello"


def test_what_the_memory_holds_decides_which_chunk_is_shown_next() -> None:
    """The harp is passed over unless the aunt is known before it, however many calls may be made at once."""
    text = "\n\n".join((
        "Ida Berg, the teacher, came by the first of trains." + " Rain fell on the town." * 4,
        "Ida Berg, the teacher, owns a cello of her aunt Wilma's." + " Rain fell on the hill." * 4,
        "An old harp came from Wilma." + " Sheep went by on the road." * 4,
        "A cart stood near the barn." + " It was red and had two wheels." * 4,
    ))  # fmt: skip
    engine = reader(calls=4)
    result, conversations = read(engine, text, screen=True, chunk_tokens=50)
    assert "harp" in result.memory and "cart" not in "".join(engine.prompts)
    assert [conversation.kind for conversation in conversations] == ["update", "update", "update", "answer"]


def test_verdicts_are_given_side_by_side_and_kept_in_order() -> None:
    alone, several = reader(calls=1), reader(calls=4)
    assert [conversation.memory for conversation in read(alone)[1]] == [
        conversation.memory for conversation in read(several)[1]
    ]


def test_a_read_resumes_and_pays_for_no_verdict_again(tmp_path: Path) -> None:
    trace = tmp_path / "read.jsonl"
    first = reader()
    whole = run(first, text_document(DOCUMENT, "a.txt"), SETTINGS, problem=PROBLEM, trace=trace)
    again = reader()
    result = run(again, text_document(DOCUMENT, "a.txt"), SETTINGS, problem=PROBLEM, trace=trace, resume=True)
    assert again.prompts == []
    assert result[0].memory == whole[0].memory
    assert [conversation.verdict for conversation in result[1]] == [
        conversation.verdict for conversation in whole[1]
    ]


def test_an_engine_that_tells_no_probabilities_notes_on_every_chunk_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FunctionEngine(
        lambda prompt: "Rain on hill 3." if section(prompt, "text") else "rain",
        count_tokens=estimate_tokens, tokenizer=ESTIMATE, name="silent",
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        result, _ = read(engine)
    assert result.answer == "rain"
    assert "silent tells no log-probabilities" in caplog.text
    assert sum(sampling.verdict for sampling in engine.samplings) == 1


def test_so_it_does_where_the_likeliest_chunks_were_to_be_enough(caplog: pytest.LogCaptureFixture) -> None:
    engine = FunctionEngine(
        lambda prompt: "Rain on hill 3." if section(prompt, "text") else "rain",
        count_tokens=estimate_tokens, tokenizer=ESTIMATE, name="silent too", judges="trained",
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        result, _ = read(engine, likeliest_chunks=3)
    assert result.answer == "rain" and "silent too tells no log-probabilities" in caplog.text
    assert not result.stopped_early


def test_in_training_the_word_that_was_drawn_decides() -> None:
    def reply(prompt: str) -> Completion | str:
        if text := section(prompt, "text"):
            word = "Yes" if "cello" in text or "harp" in text else "No"
            return Completion(word, "length", alternatives={"Yes": -2.0, "No": -0.15})
        return ", ".join(
            instrument for instrument in INSTRUMENTS if instrument in section(prompt, "document")
        )

    engine = FunctionEngine(reply, count_tokens=estimate_tokens, tokenizer=ESTIMATE, judges="trained")
    document, settings = text_document(DOCUMENT, "a.txt"), SETTINGS.replace(temperature=1.0)
    sampled = Read(PROBLEM, document, engine, settings, purpose="train")
    asyncio.run(drain(aiter(sampled)))
    assert sampled.answer == "cello, harp"


def test_in_a_read_the_odds_decide_also_by_templates_that_ask_about_no_reply(tmp_path: Path) -> None:
    templates = {"update": "{problem} {chunk} {memory}", "answer": AUTO.answer, **AUTO.own}
    lines = [f"{name} = {json.dumps(text)}" for name, text in templates.items()]
    (tmp_path / "quiet.toml").write_text("\n".join([*lines, "asks = false"]))

    def reply(prompt: str) -> Completion | str:
        if text := section(prompt, "text"):
            return replace(say(judge(text)), text="No")
        return "cello" if "cello" in section(prompt, "document") else "none"

    engine = FunctionEngine(reply, count_tokens=estimate_tokens, tokenizer=ESTIMATE)
    settings = SETTINGS.replace(temperature=1.0, templates=str(tmp_path / "quiet.toml"))
    read = Read(PROBLEM, text_document(DOCUMENT, "a.txt"), engine, settings)
    asyncio.run(drain(aiter(read)))
    assert read.answer == "cello"


def test_files_are_told_apart(tmp_path: Path) -> None:
    for name, fact in zip("abc", FACTS, strict=True):
        (tmp_path / f"{name}.txt").write_text(f"Rain fell on {name}. {fact} Sheep went by.")
    engine = reader()

    async def main() -> str:
        read = Read(PROBLEM, open_document(tmp_path), engine, SETTINGS.replace(chunk_tokens=500))
        return [conversation async for conversation in read][-1].messages[-1].content

    passages = section(asyncio.run(main()), "document")
    assert "a.txt" in passages and "c.txt" in passages


@pytest.mark.parametrize(
    ("alternatives", "odds"),
    [
        ({"Yes": -0.1, "No": -2.4}, 2.3),
        ({"Yes": math.log(0.3), " yes": math.log(0.2), "NO": math.log(0.25)}, math.log(2)),
        ({"Yes": -0.01, "Sure": -5.0}, 4.99),
        ({"Maybe": -0.1, "Sure": -3.0}, None),
        ({}, None),
    ],
)
def test_log_odds(alternatives: dict[str, float], odds: float | None) -> None:
    assert log_odds(alternatives) == (odds if odds is None else pytest.approx(odds))
