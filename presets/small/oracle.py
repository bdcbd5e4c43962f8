"""A reader to imitate: what it replies to the prompts of this folder, whatever the workflow.

The last line of a prompt tells what is asked for. If the example has a rationale, each reply to a chunk
begins with a thought that looks up what the question asks for; if that is `AT_RANDOM`, the facts that it will
note, whatever is asked for, and then only answers from all that is needed are imitated. It notes the facts in
the example's evidence, each when its chunk is read, and answers from those that its memory, or the passages
in its place, hold. Now and then it slips: it repeats a line of the memory, or garbles one. A slip is not
imitated, but what follows is: it leaves such a memory as it is, and tidies it as it notes the next fact.
`warm_start.trajectories` names it: small/oracle.py:Noting.
"""

import random
import re
import sys
from dataclasses import replace
from pathlib import Path

from memagent.documents.cutting import cut
from memagent.errors import EngineError
from memagent.prompts import UNCHANGED, Prompts
from memagent.prompts.loading import load_prompts
from memagent.reading.ranking import best_passages
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.text import SENTENCE_GAP
from memagent.training.data import load_function
from memagent.types import Completion, Conversation, Example, Message, Model, Sampling, Trajectory, Usage

PROMPT = re.compile(
    r"<problem>.*?</problem>\n(?:(?P<chunk>.*)\n)?<memory>(?P<memory>.*?)</memory>\n(?P<wanted>[^\n]+)\n",
    re.DOTALL,
)
EXCERPT = re.compile(r'^E\d+ "(.*?)\.?" \(\d', re.MULTILINE)  # as `evidence` shows it
SLIPS = 0.15  # of the chunks without a fact
PASSAGE = 60  # tokens of a passage, at most: a sentence, or a piece of a long one
PASSAGES = (4, 8)  # that are shown in one prompt: the window has room for eight
SEARCHES = (1, 2)  # with which they are found
HERE = Path(__file__).parent
notes_of, look_up, solve, is_answered, count_tokens = (
    load_function(f"{HERE / 'data.py'}:{name}")
    for name in ("notes_of", "look_up", "solve", "is_answered", "count_tokens")
)
AT_RANDOM = sys.modules[notes_of.__module__].AT_RANDOM


def from_passages(example: Example) -> Trajectory:
    """What answers one prompt with passages of the document, without a memory: RAG, to be imitated.

    Half of them are found with two searches, so that both hops are shown.
    """
    source = random.Random(f"passages/{example.id}")
    asked = ask_of_passages(example, source.choice(PASSAGES), source.choice(SEARCHES))
    reply = Completion(answer_from(example.problem, asked[-1].content), "stop")
    return Trajectory(example.id, (Conversation("answer", None, asked, reply, ""),), reply.text)


def ask_of_passages(example: Example, number: int, searches: int = 1) -> tuple[Message, ...]:
    """The prompt of an answer, with `number` passages in the memory's place, those that BM25 ranks best.

    With two searches, the second is for what the passages of the first leave open, such as the town that a
    first hop leads to, and each finds half of the passages.
    """
    problem, passages = example.problem, passages_of(example.document)
    prompts = replace(load_prompts(HERE / "gated.toml"), guards_turns=False)
    chosen: list[int] = []
    query = problem
    for _ in range(searches):
        others = [index for index in range(len(passages)) if index not in chosen]
        best = best_passages(query, [passages[index] for index in others], number // searches)
        chosen = sorted([*chosen, *(others[index] for index in best)])
        shown = "\n".join(passages[index] for index in chosen)
        missing = [line for line in look_up(problem, notes_of(shown), ()) if " is" not in line]
        query = " ".join(missing) or problem
    return prompts.fill("answer", problem=problem, memory=shown)


def passages_of(document: str) -> list[str]:
    """A document's sentences; those of more than `PASSAGE` tokens in pieces."""
    return [
        piece.text.strip()
        for sentence in SENTENCE_GAP.split(document)
        for piece in cut([sentence], PASSAGE, count_tokens())
    ]


def lines_of(memory: str) -> list[str]:
    """What was noted in a memory, a line or an excerpt each."""
    return EXCERPT.findall(memory) or memory.split("\n")


def answer_from(problem: str, shown: str) -> str:
    """The notes that lead to the answer, and the answer, from a memory or from passages."""
    held = dict.fromkeys([*lines_of(shown), *notes_of(shown)])  # what was noted, or the facts in passages
    notes, answers = solve(problem, [*held])
    if not answers:
        return f"The memory {ABSENT_ANSWERS[0]}."
    return " ".join(f"{note}." for note in notes) + f" The answer is {', '.join(answers)}."


class Noting:
    """An engine for a read of one example. Raises `EngineError` for a prompt of another kind.

    `erred` holds the replies that are not to be imitated.
    """

    def __init__(self, example: Example, prompts: Prompts, model: Model) -> None:
        self.model = replace(model, name="oracle")
        self.erred: set[str] = set()
        self._example, self._prompts = example, prompts
        self._source = random.Random(f"slips/{example.id}")

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """The perfect reply."""
        shown = PROMPT.fullmatch(messages[-1].content)
        if shown is None:
            raise EngineError(f"no prompt of this preset: {messages[-1].content[-80:]!r}")
        memory = "" if shown["memory"] == self._prompts.empty_memory else shown["memory"]
        text = self._reply(shown["wanted"], shown["chunk"] or "", memory)
        tokens = self.model.count_tokens(text)
        if tokens > sampling.max_tokens and text in self.erred:
            text = "".join([*text.rpartition("</think>\n")[:2], UNCHANGED])
            tokens = self.model.count_tokens(text)
        if tokens > sampling.max_tokens:
            raise EngineError(f"{self._example.id}: {tokens} tokens, but {sampling.max_tokens} are left")
        prompt_tokens = self.model.count_tokens(messages[-1].content)
        return Completion(text, "stop", usage=Usage(prompt_tokens, tokens))

    async def aclose(self) -> None:
        """Nothing to release."""

    def _reply(self, wanted: str, chunk: str, memory: str) -> str:
        if wanted == "The answer:":
            answer = answer_from(self._example.problem, memory)
            if self._example.rationale == AT_RANDOM and not is_answered(
                self._example.problem, lines_of(memory)
            ):
                self.erred.add(answer)
            return answer
        noted = lines_of(memory)
        new = [note for note in notes_of(chunk) if note in self._example.evidence and note not in noted]
        thought = self._think(noted, chunk, new)
        match wanted:
            case "UNCHANGED, or excerpts:":
                lines = [f'ADD "{fact}"' for fact in new]
            case "UNCHANGED, or the new memory:":
                lines = self._rewrite(memory, new)
            case "The new memory:":
                lines = self._rewrite(memory, new) or self._right(memory) or [self._prompts.empty_memory]
            case _:
                raise EngineError(f"it is not known what to reply to {wanted!r}")
        reply = thought + ("\n".join(lines) or UNCHANGED)
        if "\n".join(lines) in self.erred:
            self.erred.add(reply)
        return reply

    def _think(self, noted: list[str], chunk: str, new: list[str]) -> str:
        if not self._example.rationale:
            return ""
        if self._example.rationale == AT_RANDOM:
            held = [note for note in self._example.evidence if note in noted]
            looked_up = [*held, *(f"{note}." for note in new)]
        else:
            looked_up = look_up(self._example.problem, noted, notes_of(chunk))
        return "<think>" + "\n".join(looked_up) + "</think>\n"

    def _right(self, memory: str) -> list[str]:
        lines = memory.split("\n")
        return [fact for fact in self._example.evidence if fact in lines]

    def _rewrite(self, memory: str, new: list[str]) -> list[str]:
        """A memory with new notes, in the order of what was looked up; without, the slip of a memory."""
        right = self._right(memory)
        return (
            [fact for fact in self._example.evidence if fact in right or fact in new]
            if new
            else self._slip(memory)
        )

    def _slip(self, memory: str) -> list[str]:
        """Now and then a memory that a reader should not have written; else nothing."""
        if memory in ("", self._prompts.empty_memory) or self._source.random() >= SLIPS:
            return []
        lines = memory.split("\n")
        index = self._source.randrange(len(lines))
        if self._source.random() < 0.5:
            slipped = (
                lines[: index + 1]
                + lines[index : index + 1] * self._source.randint(1, 3)
                + lines[index + 1 :]
            )
        else:
            words = re.split(r"(?<=\W)", lines[index])
            at = self._source.randrange(len(words))
            others = self._source.choices(words, k=self._source.randint(1, 4))
            slipped = [*lines, "".join([*words[:at], *others])]
        self.erred.add("\n".join(slipped))
        return slipped
