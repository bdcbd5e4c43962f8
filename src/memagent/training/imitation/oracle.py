"""The perfect memory-writer: an engine that knows what each example's answer follows from.

It runs the package's workflows unchanged, so a warm start imitates conversations with exactly the prompts of
a read. It never says ENOUGH: what was read does not tell whether more is to come.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from memagent.documents.opening import text_document
from memagent.documents.tokens import shorten
from memagent.errors import EngineError
from memagent.prompts import MEMORY, UNCHANGED, Prompts
from memagent.reading.workflows import choose_workflow
from memagent.settings import ReadSettings
from memagent.training.imitation.solutions import SENTENCE_ENDS, solution_of
from memagent.training.rewards import exact_reward
from memagent.training.rollout import Rollout
from memagent.types import Completion, Engine, Example, Message, Model, Sampling, Trajectory, Usage

_log = logging.getLogger(__name__)


class Player(Engine, Protocol):
    """An engine to imitate, for one read; `erred` holds its replies that are not to be imitated."""

    erred: set[str]


MakePlayer = Callable[[Example, Prompts, Model], Player]
"""Makes the player of an example, with the prompts of its read, for the model being trained."""

_CHUNK = "\ue000chunk\ue000"  # stands for the chunk when prompts are compared; occurs in no document


class Oracle:
    """An engine for one read of one example, with the prompts of that read.

    It replies to an update with the memory so far and the evidence in the chunk. If there is none, it replies
    UNCHANGED if the prompt offers that word, and otherwise with the memory as it is. At the end it gives the
    gold answer, all of them if several values are asked for, or says that the memory does not hold it. In a
    share `mistakes` of the chunks without evidence it errs: it notes the sentence that shares the most words
    with the problem, and drops it with its next note. `erred` holds these replies. `model` is the model being
    trained. Raises `SettingsError` for an example whose solution is not known.
    """

    def __init__(self, example: Example, prompts: Prompts, model: Model, mistakes: float = 0.0) -> None:
        self.erred: set[str] = set()
        self.model = replace(model, name="oracle")
        self._example = example
        mark = text_document(example.document, is_example=True).mark
        self.prompts = prompts.for_document(mark, guards_turns=model.reads_turn_tokens, asks=False)
        self._document = self._clean(example.document)
        shown = replace(example, evidence=tuple(map(self._clean, example.evidence)))
        self._solution = solution_of(shown, self._document, self._count_tokens)
        self._position = 0
        self._noted = ""
        self._memory = ""
        self._mistakes = mistakes
        self._source = random.Random(example.id)

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """The perfect reply. Raises `EngineError` for a prompt that does not belong to this read."""
        problem = self._example.problem
        if messages == self.prompts.for_answer(problem, self._memory):
            return self._completion(messages, self._solution.answer(), sampling)
        if chunk := self._find_chunk(messages):
            return self._completion(messages, self._update(chunk, sampling), sampling)
        raise EngineError(
            f"the oracle did not write the memory of a prompt for {self._example.id}: it plays only "
            "workflows that keep each reply as the memory, with the prompts that it was given"
        )

    async def aclose(self) -> None:
        """Nothing to release."""

    def _update(self, chunk: str, sampling: Sampling) -> str:
        start = self._document.find(chunk, self._position)
        if start < 0:
            raise EngineError(f"{self._example.id}: a chunk is not in the document, or was read before")
        self._position = start + len(chunk)
        head = f"{MEMORY}\n" if self.prompts.replies == "marked" else ""
        # The end of a reply needs room too, and so does its head.
        limit_tokens = sampling.max_tokens - 1 - (self._count_tokens(head) if head else 0)
        before, self._noted = self._noted, self._solution.see(start, self._position, limit_tokens)
        may_leave = UNCHANGED in self.prompts.update
        memory = self._memory
        after = memory if may_leave and self._noted == before else self._noted
        erred = ""
        if self._noted == before and self._source.random() < self._mistakes:
            erred = self._add_mistake(chunk, limit_tokens)
            after = erred or after
        self._memory = after
        if may_leave and after == memory:
            return UNCHANGED
        reply = head + self.prompts.neutralise(after or self.prompts.empty_memory)
        self.erred |= {reply} if erred else set()
        return reply

    def _add_mistake(self, chunk: str, limit_tokens: int) -> str:
        """The memory with a sentence of the chunk that does not belong there; empty if none fits."""
        wanted = _words(self._example.problem)
        sentences = SENTENCE_ENDS.split(chunk.strip())
        for sentence in sorted(sentences, key=lambda it: len(wanted & _words(it)), reverse=True):
            after = f"{self._noted}\n{sentence}".strip()
            if self._count_tokens(after) <= limit_tokens:
                return after
        return ""

    def _find_chunk(self, messages: tuple[Message, ...]) -> str:
        """The chunk in an update's prompt; empty for another kind of prompt, or for another memory."""
        expected = self.prompts.for_update(self._example.problem, _CHUNK, self._memory)
        if messages[:-1] != expected[:-1]:
            return ""
        text, parts = messages[-1].content, expected[-1].content.split(_CHUNK)
        length = (len(text) - sum(map(len, parts))) // (len(parts) - 1)
        chunk = text[len(parts[0]) : len(parts[0]) + length] if length > 0 else ""
        return self.prompts.restore(chunk) if chunk.join(parts) == text else ""

    def _clean(self, text: str) -> str:
        """The text as a reader sees it: without the few characters that no prompt can carry."""
        return self.prompts.restore(self.prompts.neutralise(text))

    def _count_tokens(self, text: str) -> int:
        return self.model.count_tokens(self.prompts.neutralise(text))

    def _completion(self, messages: tuple[Message, ...], text: str, sampling: Sampling) -> Completion:
        whole, text = text, shorten(text, sampling.max_tokens, self.model.count_tokens)
        usage = Usage(self.model.count_prompt(messages), self.model.count_tokens(text))
        return Completion(text, "stop" if text == whole else "length", usage=usage)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


async def solve(
    examples: Iterable[Example],
    settings: ReadSettings,
    model: Model,
    least_reward: float = 1.0,
    mistakes: float = 0.0,
    player: MakePlayer | None = None,
) -> AsyncGenerator[Trajectory, None]:
    """The oracle's trajectory of each example, in order, with its reward; or that of another `player`.

    In a share `mistakes` of the chunks without evidence, it continues from a note that it should not have
    made; the conversations with these notes are left out.

    `settings` are those that training will read with, and `model` is the model being trained: its tokenizer
    and templates are used. An example that the budgets leave no room for earns less than `least_reward` and
    is left out with a warning. Raises `SettingsError` for an example that cannot be solved, and for budgets
    that do not fit.
    """
    prompts = choose_workflow(settings, model.trained)[1].prompts
    left_out = 0
    for example in examples:
        make = player or partial(Oracle, mistakes=mistakes)
        oracle = make(example, prompts, model)
        rollout = Rollout(engine=oracle, settings=settings, reward=exact_reward)
        trajectory = await rollout.attempt_if_readable(example)
        if trajectory is None:
            continue
        if (worth := trajectory.reward or 0.0) >= least_reward:
            good = [it for it in trajectory.conversations if it.completion.text not in oracle.erred]
            yield replace(trajectory, conversations=tuple(good))
        else:
            left_out += 1
            if left_out == 1:
                _log.warning("%s is left out: the budgets allow only a reward of %.2f", example.id, worth)
    if left_out > 1:
        _log.warning("%d examples in all are left out for that reason", left_out)
