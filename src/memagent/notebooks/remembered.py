"""Answer from a memory that an earlier read has kept: one call, no document."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from memagent.documents.marks import mark_of
from memagent.documents.opening import text_document
from memagent.errors import SettingsError
from memagent.prompts.thoughts import without_thought
from memagent.reading.conversations import Reading
from memagent.reading.passes import Passes
from memagent.reading.sources import Statement
from memagent.reading.workflows import choose_workflow
from memagent.settings import ReadSettings
from memagent.types import Engine, Model, Spent, TokenCounter


@dataclass(frozen=True, slots=True)
class Remembered:
    """An answer from a memory.

    `statements` are those of the answer with the memory's sources for them, if the settings ask for them
    (`cite`) or the workflow keeps sources itself.
    """

    answer: str
    model: str
    spent: Spent
    seconds: float
    statements: tuple[Statement, ...] = ()


async def answer_from(
    memory: str,
    problem: str,
    engine: Engine,
    settings: ReadSettings | None = None,
    memory_tokens: int = 0,
    statements: Sequence[Statement] = (),
) -> Remembered:
    """Answer a problem from a memory alone, as the workflow does at its end.

    Args:
        memory: the memory; it must not be empty.
        problem: the question.
        engine: what completes the chat; it stays open.
        settings: how to read; workflow, templates, budgets and sampling apply.
        memory_tokens: the budget that the memory was written under, if known.
        statements: those of the memory, with their sources.

    Raises `SettingsError` for an empty problem or memory and for what exceeds its budget, and `EngineError`.
    """
    settings = (settings or ReadSettings()).fill_from(engine.model.trained)
    if not problem.strip():
        raise SettingsError("the problem is empty: ask a question")
    if not memory.strip():
        raise SettingsError("the memory is empty: there is nothing to answer from")
    model = engine.model
    _, workflow = choose_workflow(settings, model.trained)
    digest = hashlib.sha256(memory.encode("utf-8", "replace")).hexdigest()
    mark = await asyncio.to_thread(mark_of, digest)
    prompts = workflow.prompts.for_document(mark, guards_turns=model.reads_turn_tokens)
    budgets = await asyncio.to_thread(workflow.budgets, settings, model)
    nothing = Passes(text_document("").blocks(), budgets.chunk_tokens, model.count_tokens)
    reading = Reading(problem, engine, prompts, budgets, nothing, settings)
    await reading.check_problem()
    if budgets.memory_tokens < memory_tokens:
        await asyncio.to_thread(check_memory, memory, settings, model)
    shown = await asyncio.to_thread(workflow.shown, reading, memory) if workflow.shown else memory
    conversation = await reading.answer(shown, memory)
    answer = prompts.restore(without_thought(conversation.completion.text))
    cited: tuple[Statement, ...] = ()
    if provenance := workflow.sources(settings, statements):
        await asyncio.to_thread(provenance.update, conversation)
        cited = await asyncio.to_thread(provenance.answer, answer)
        answer = provenance.bare(answer)
    return Remembered(
        answer=answer,
        model=model.name,
        spent=settings.price(conversation.completion.usage),
        seconds=round(conversation.seconds, 3),
        statements=cited,
    )


def check_memory(
    memory: str, settings: ReadSettings, model: Model, count_tokens: TokenCounter | None = None
) -> None:
    """Raise `SettingsError` if a memory is too long for a read to start or answer from. Blocks.

    `count_tokens` counts in the model's place.
    """
    _, workflow = choose_workflow(settings, model.trained)
    tokens = (count_tokens or model.count_tokens)(memory)
    if tokens > (most := workflow.most_memory_tokens(settings, model)):
        raise SettingsError(
            f"the memory has {tokens} tokens, but its budget is {most}: raise `memory_tokens`, "
            "or use a model with a larger window"
        )
