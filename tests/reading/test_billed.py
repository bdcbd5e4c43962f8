"""What a read says that it has spent is what its server has billed, for replies of no use too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from memagent import ContextOverflowError, EngineError, Read, ReadSettings, text_document
from memagent.concurrency import drain
from memagent.engines.openai import Connection, connect
from memagent.reading.journal import read_journal
from memagent.reading.lines import Overflow
from memagent.types import Spent
from server import (
    UNUSABLE_REPLIES,
    Fault,
    FaultPlan,
    Server,
    complete,
    facts_document,
    lasting_fault,
    read_facts,
    scripted_faults,
    seeded_faults,
)

DOCUMENT = text_document(
    facts_document(12), is_example=True
)  # its prompts, and so the faults, are always the same
READ = ReadSettings(workflow="gated", chunk_tokens=100, memory_tokens=200, answer_tokens=60,
                    prompt_price=1.0, completion_price=2.0)  # fmt: skip


class Biller:
    """A server that keeps the usage of all that it has made, whatever became of it on its way."""

    def __init__(self, serve: Callable[..., Server], faults: FaultPlan) -> None:
        self.bills: list[dict[str, int]] = []
        self.server = serve(None, faults, completion=self._complete)

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        completion = complete(body, read_facts(body["messages"]))
        self.bills.append(completion["usage"])
        return completion

    @property
    def billed(self) -> tuple[int, int, float]:
        """Prompt tokens, completion tokens and the cost."""
        prompt, completion = (
            sum(bill[f"{kind}_tokens"] for bill in self.bills) for kind in ("prompt", "completion")
        )
        return prompt, completion, pytest.approx((prompt + 2 * completion) / 1e6)


async def read(server: Server, trace: Path | None = None, *, resume: bool = False, **settings: Any) -> Read:
    """Read until the end, or until it fails."""
    connection = Connection(base_url=server.base_url, first_delay_seconds=0.0, **settings)
    async with aclosing(await connect(None, connection)) as engine:
        reading = Read("Which facts?", DOCUMENT, engine, READ, trace=trace, resume=resume)
        try:
            await drain(aiter(reading))
        except EngineError as error:
            assert not isinstance(error, ContextOverflowError)
        return reading


def summarize(spent: Spent) -> tuple[int, int, float | None]:
    return spent.prompt_tokens, spent.completion_tokens, spent.cost


def test_replies_that_were_asked_for_again_are_counted(serve: Callable[..., Server], tmp_path: Path) -> None:
    biller = Biller(serve, seeded_faults(0.4, 3, tuple(UNUSABLE_REPLIES)))
    done = asyncio.run(read(biller.server, tmp_path / "t.jsonl", retries=9))
    assert done.has_answer and len(biller.bills) > done.progress.spent.calls + 3
    assert summarize(done.progress.spent) == summarize(done.result.spent) == biller.billed
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["type"] == "conversation"]
    in_steps = [usage for step in steps for usage in (step["usage"], *step.get("unusable", ()))]
    assert sum(usage["prompt_tokens"] for usage in in_steps) == biller.billed[0]
    again = asyncio.run(read(biller.server, tmp_path / "t.jsonl", resume=True))
    assert again.progress.recalled == again.progress.spent.calls == done.progress.spent.calls
    assert summarize(again.progress.spent) == biller.billed


def test_a_read_that_fails_tells_what_was_billed_all_the_same(serve: Callable[..., Server]) -> None:
    biller = Biller(serve, lasting_fault(UNUSABLE_REPLIES["filtered"], spared=3))
    failed = asyncio.run(read(biller.server, retries=2))
    assert not failed.has_answer and len(biller.bills) == 6
    assert summarize(failed.progress.spent) == biller.billed and failed.progress.spent.calls == 3


def test_a_prompt_that_the_server_cut_was_billed(serve: Callable[..., Server], tmp_path: Path) -> None:
    def cut(completion: dict[str, Any]) -> None:
        completion["usage"]["prompt_tokens"] = 20

    biller = Biller(serve, scripted_faults(UNUSABLE_REPLIES["null"], Fault(spoil=cut)))
    done = asyncio.run(read(biller.server, tmp_path / "t.jsonl", retries=2))
    assert any(isinstance(line, Overflow) for line in read_journal(tmp_path / "t.jsonl"))
    assert done.has_answer and summarize(done.progress.spent) == biller.billed
    again = asyncio.run(read(biller.server, tmp_path / "t.jsonl", resume=True))
    assert summarize(again.progress.spent) == biller.billed
