"""Tally: answers that add up. A model proposes rows, code checks them, and SQL counts.

From the question alone the model plans one table and one SELECT over it. Each chunk is then read by itself
for rows; one is kept only if a passage of the chunk has all of its values. Passages that look like rows are
judged by themselves: what is none is refused, and a row that was overlooked is asked for again. Tables are
read by code. No number of the answer comes from the model, so it is as right as the rows are, and says how
many were read.

That extraction followed by SQL answers what models alone cannot count is from SLIDERS (arXiv 2604.22294) and
RAH (arXiv 2606.13643).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from pydantic import Field

from memagent.documents.chunking import halve
from memagent.errors import ContextOverflowError, SettingsError
from memagent.prompts.thoughts import without_thought
from memagent.reading.conversations import Chunks, Conversations, Reading
from memagent.reading.tally.answers import Coverage, answer
from memagent.reading.tally.borders import whole_records
from memagent.reading.tally.passages import passages_of
from memagent.reading.tally.plan import PLAN_SCHEMA, Plan, parse_plan, read_plan
from memagent.reading.tally.plan import Field as RowField
from memagent.reading.tally.prompts import PROMPTS
from memagent.reading.tally.rows import ReplyRows, Row, correct, find_rows, merge
from memagent.reading.tally.tables import TablePiece, divide, match_columns, rows_of
from memagent.reading.tally.values import check_installed
from memagent.reading.verdicts import NO
from memagent.reading.workflow import Workflow, take_each
from memagent.settings import Options
from memagent.types import Chunk, Completion, Conversation

CHUNK_TOKENS = 400
"""The usual size of a chunk: small models overlook rows in longer ones."""

MIN_LOG_ODDS = math.log(2)
"""Of Yes to a passage that states a row: small models say it a little too readily of what has its values."""

_LEAST_TOKENS = 100  # of a chunk that is read again in halves
_TRIES = 2  # for a plan

_FORECAST = Plan(row="any", fields=(RowField(name="value", type="number"),), sql="SELECT COUNT(*) FROM rows")
"""Stands for a plan that the model would make: wherever there is a number, there may be a row."""


class Tallying(Options):
    """How rows are counted."""

    plan: str = Field(
        default="", description="the plan of a tally, as TOML; a forecast of `memagent tally` shows one"
    )
    second_look: bool = Field(
        default=True, description="whether passages that look like rows are judged by themselves (tally)"
    )
    exact_names: bool = Field(
        default=False, description="whether names that are written differently differ (tally)"
    )


async def tally(reading: Reading, chunks: Chunks, _memory: str = "") -> Conversations:
    """Plan, read all chunks for rows, and count; the answer has the table that it was counted from.

    Raises `SettingsError` for a plan that cannot be used, and if what parses values is not installed.
    """
    await asyncio.to_thread(check_installed)
    options = reading.settings.of(Tallying)
    if options.plan:
        plan = await asyncio.to_thread(read_plan, options.plan)
    else:
        plan = _FORECAST
        async for conversation, proposed in _propose(reading):
            plan = proposed or plan
            yield conversation
    rows = Rows(reading, plan, options.second_look)
    async with (
        aclosing(rows.pieces(chunks)) as pieces,
        aclosing(take_each(reading, rows.read, pieces)) as batches,
    ):
        async for conversations in batches:
            for conversation in conversations:
                yield conversation
    if reading.answers:
        yield await rows.answer(options.exact_names)


async def _propose(reading: Reading) -> AsyncGenerator[tuple[Conversation, Plan | None], None]:
    """The conversations that make a plan; the second has what was wrong with the first.

    They do not see the text: it distracts small models, and no document can change what is counted.
    """
    prompts, tokens = reading.prompts, reading.budgets.memory_tokens
    messages = prompts.fill("plan", question=reading.problem)
    for _ in range(_TRIES):
        conversation = await reading.aside(messages, "", tokens, PLAN_SCHEMA)
        reply = prompts.restore(without_thought(conversation.completion.text))
        try:
            plan = await asyncio.to_thread(parse_plan, reply)
        except SettingsError as error:
            mistake = str(error)
            messages = prompts.fill("repair", question=reading.problem, plan=reply, mistake=mistake)
            yield conversation, None
        else:
            yield replace(conversation, memory=plan.to_toml()), plan
            return
    if reading.purpose == "read":
        advice = "write one yourself (`plan`)"
        raise SettingsError(
            f"the model made no plan that can be used: {advice}. {mistake}. It wrote:\n{reply}"
        )


@dataclass(slots=True)
class Rows:
    """The rows of a document, and how many of its chunks they come from."""

    reading: Reading
    plan: Plan
    second_look: bool = True
    _rows: list[Row] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)  # chunks, by index
    _failed: set[int] = field(default_factory=set)
    _refused: list[dict[str, str]] = field(default_factory=list)
    _from_tables: int = 0
    _columns: dict[tuple[str, ...], asyncio.Task[tuple[Conversation, dict[str, int] | None]]] = field(
        default_factory=dict
    )

    async def pieces(self, chunks: Chunks) -> AsyncGenerator[Chunk | TablePiece, None]:
        """The text and the tables of the chunks, which end where records do."""
        heads, count = dict[str, tuple[str, ...]](), self.reading.model.count_tokens
        async with aclosing(whole_records(chunks, count)) as whole:
            async for chunk in whole:
                self._seen.add(chunk.index)
                for piece in await asyncio.to_thread(divide, chunk, heads, count):
                    yield piece

    async def read(self, piece: Chunk | TablePiece) -> list[Conversation]:
        """The conversations about a piece, whose rows are taken."""
        return await (self._read_table(piece) if isinstance(piece, TablePiece) else self._read_text(piece))

    async def answer(self, exact_names: bool) -> Conversation:
        """The answer, which code has counted."""
        chunks = await self.reading.passes.count()
        rows, merged = await asyncio.to_thread(merge, self._rows)
        coverage = Coverage(
            chunks=chunks,
            passed_over=chunks - len(self._seen),
            failed=len(self._failed),
            rows=len(rows),
            refused=len(self._refused),
            merged=merged,
            from_tables=self._from_tables,
        )
        text, table = await asyncio.to_thread(answer, self.plan, rows, coverage, exact_names)
        table = {**table, "refused": self._refused}
        return Conversation("answer", None, (), Completion(text), "", table=table)

    async def _read_text(self, chunk: Chunk) -> list[Conversation]:
        """Take the rows of a chunk; one that is too long, or whose reply is no use, is read in halves."""
        if not chunk.text.strip():
            return []
        may_halve = chunk.tokens >= _LEAST_TOKENS and self.reading.purpose == "read"
        try:
            update, reply = await self._ask_rows(chunk)
        except ContextOverflowError:
            if not may_halve:
                raise
            return await self._read_halves(chunk)
        if update.completion.finish_reason == "length" or not reply.readable:
            if may_halve:
                return [update, *await self._read_halves(chunk)]
            self._failed.add(chunk.index)
        conversations = [update]
        if self.second_look:
            others, reply = await self._look_again(chunk, reply)
            conversations += others
        self._rows += reply.rows
        self._refused += [{**values, "file": chunk.source} for values in reply.refused]
        return conversations

    async def _look_again(self, chunk: Chunk, reply: ReplyRows) -> tuple[list[Conversation], ReplyRows]:
        """Have the passages that look like rows judged; those that are and have none are asked about."""
        count = self.reading.model.count_tokens
        conversations, others, refused = list[Conversation](), list[ReplyRows](), list[Row]()
        for passage in await asyncio.to_thread(passages_of, self.plan, chunk, reply.rows, count):
            messages = self.reading.prompts.fill(
                "states_row",
                text=passage.chunk.shown,
                row=self.plan.row,
                fields=", ".join(self.plan.meanings),
            )
            verdict = await self.reading.ask_verdict(messages, "")
            conversations.append(verdict.about(passage.chunk))
            if _is_no(verdict):
                refused += passage.rows
            elif passage.figures:
                update, other = await self._ask_rows(passage.chunk, passage.figures)
                conversations.append(update)
                others.append(other)
        return conversations, await asyncio.to_thread(correct, reply.without(refused), others, self.plan)

    async def _ask_rows(self, chunk: Chunk, figures: Sequence[str] = ()) -> tuple[Conversation, ReplyRows]:
        """Ask for the rows of a chunk, or for those to which these figures of it belong."""
        prompts = self.reading.prompts
        messages = prompts.fill(
            "again" if figures else "rows",
            table=self.plan.described,
            text=chunk.shown,
            figures=" and ".join(figures),
        )
        update = await self.reading.aside(messages, "", self.reading.budgets.memory_tokens)
        reply = prompts.restore(without_thought(update.completion.text))
        finds = await asyncio.to_thread(find_rows, reply, self.plan, chunk)
        memory = "\n".join(row.to_json() for row in finds.rows)
        return replace(update.about(chunk), memory=memory, refused=len(finds.refused)), finds

    async def _read_halves(self, chunk: Chunk) -> list[Conversation]:
        halves = await asyncio.to_thread(halve, chunk, self.reading.model.count_tokens)
        return [conversation for half in halves for conversation in await self._read_text(half)]

    async def _read_table(self, grid: TablePiece) -> list[Conversation]:
        """Take the rows of a table; a model is asked for its columns once, by the first piece of it."""
        columns = match_columns(grid, self.plan, None)
        conversations = list[Conversation]()
        if not columns and grid.lines:
            if asks := grid.columns not in self._columns:
                self._columns[grid.columns] = asyncio.create_task(self._ask_columns(grid))
            conversation, columns = await self._columns[grid.columns]
            conversations += [conversation] if asks else []
        if columns is None:
            self._failed.add(grid.chunk.index)
            return conversations
        rows = await asyncio.to_thread(lambda: list(rows_of(grid, columns)))
        self._rows += rows
        self._from_tables += len(rows)
        return conversations

    async def _ask_columns(self, grid: TablePiece) -> tuple[Conversation, dict[str, int] | None]:
        prompts = self.reading.prompts
        messages = prompts.fill("columns", wanted=self.plan.described, table=grid.shown)
        conversation = await self.reading.aside(messages, "", self.reading.budgets.memory_tokens)
        reply = prompts.restore(without_thought(conversation.completion.text))
        columns = await asyncio.to_thread(match_columns, grid, self.plan, reply)
        return conversation.about(grid.chunk), columns


def _is_no(verdict: Conversation) -> bool:
    """Whether a passage states no row; the word decides where no probabilities are told."""
    if verdict.verdict is not None:
        return verdict.verdict < MIN_LOG_ODDS
    return verdict.completion.text.strip().casefold().startswith(NO.casefold())


WORKFLOW = Workflow(
    tally,
    PROMPTS,
    screens=True,
    takes_notes=True,
    options=(Tallying,),
    chunk_tokens=CHUNK_TOKENS,
    counts=True,
)
