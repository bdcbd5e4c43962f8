"""A reader to imitate: what it replies to the prompts of this folder, whatever the workflow.

The last line of a prompt tells what is asked for. It notes the facts in the example's evidence, each when its
chunk is read, and answers from those that its memory holds. Now and then it slips: it repeats a line of the
memory, or garbles one, or notes what is no fact. A slip is not imitated, but what follows is: it leaves such
a memory as it is, and tidies it as it notes the next fact, or merges notes. If it may look something up, it
passes over one fact of every other document, until its chunk is read again. `warm_start.trajectories` names
it: small/oracle.py:Noting.
"""

import random
import re
from dataclasses import replace

from memagent.errors import EngineError
from memagent.prompts import ENOUGH, UNCHANGED, Prompts
from memagent.tasks.recipe import ABSENT_ANSWERS
from memagent.types import Completion, Example, Message, Model, Sampling, Usage

PROMPT = re.compile(
    r"(?:(?P<chunk>.*)\n)?<problem>.*?</problem>\n<memory>(?P<memory>.*?)</memory>\n"
    r"(?:<question>(?P<question>.*?)</question>\n)?(?P<wanted>[^\n]+)\n",
    re.DOTALL,
)
SLIPS = 0.15  # of the chunks without a fact
STRAY = range(3, 60)  # words of a note that is no fact
WAYS = (  # what a problem asks about, what the first note on the way says of it, and how many notes there are
    (re.compile(r"number does the text give for (.+)\?"), "for {} is", 1),
    (re.compile(r"home town of (.+)\?"), "of {} is", 2),
    (re.compile(r"the value (\d+)"), "= {}", 5),
)
NEXT = re.compile(r"\[part \d+ of \d+, next\]\n(.*?)(?:\n\n\[part |\Z)", re.DOTALL)


class Noting:
    """An engine for a read of one example. Raises `EngineError` for a prompt of another kind.

    `erred` holds the replies that are not to be imitated.
    """

    def __init__(self, example: Example, prompts: Prompts, model: Model) -> None:
        self.model = replace(model, name="oracle")
        self.erred: set[str] = set()
        self._example, self._prompts = example, prompts
        self._source = random.Random(f"slips/{example.id}")
        self._passed_over = _passed_over(example) if prompts.gap else ""

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """The perfect reply."""
        shown = PROMPT.fullmatch(messages[-1].content)
        if shown is None:
            raise EngineError(f"no prompt of this preset: {messages[-1].content[-80:]!r}")
        memory = "" if shown["memory"] == self._prompts.empty_memory else shown["memory"]
        if shown["question"]:
            self._passed_over = ""
        text = self._reply(shown["wanted"], shown["chunk"] or "", memory)
        tokens = self.model.count_tokens(text)
        if tokens > sampling.max_tokens and text in self.erred:
            text, tokens = UNCHANGED, 1
        if tokens > sampling.max_tokens:
            raise EngineError(f"{self._example.id}: {tokens} tokens, but {sampling.max_tokens} are left")
        prompt_tokens = self.model.count_tokens(messages[-1].content)
        return Completion(text, "stop", usage=Usage(prompt_tokens, tokens))

    async def aclose(self) -> None:
        """Nothing to release."""

    def _reply(self, wanted: str, chunk: str, memory: str) -> str:
        noted = (it for it in self._example.evidence if it != self._passed_over)
        new = [it for it in noted if it in chunk and it not in memory]
        match wanted:
            case "The answer:":
                return self._answer(memory)
            case "ENOUGH, or the question:":
                return self._question(memory)
            case "UNCHANGED, or excerpts:":
                lines = [f'ADD "{it}"' for it in new] or self._stray(chunk, 'ADD "{}"')
            case "UNCHANGED, or a note:":
                lines = new or self._stray(chunk)
            case "UNCHANGED, or the part marked next:":
                part = NEXT.search(memory)
                lines = self._rewritten(part[1] if part else "", new)
            case "UNCHANGED, or the new memory:":
                lines = self._rewritten(memory, new)
            case "The new memory:":
                lines = self._rewritten(memory, new) or self._right(memory) or [self._prompts.empty_memory]
            case _:
                raise EngineError(f"it is not known what to reply to {wanted!r}")
        return "\n".join(lines) or UNCHANGED

    def _right(self, memory: str) -> list[str]:
        lines = memory.split("\n")
        return [it for it in self._example.evidence if it in lines]

    def _rewritten(self, memory: str, new: list[str]) -> list[str]:
        return [*self._right(memory), *new] if new else self._slip(memory)

    def _slip(self, memory: str) -> list[str]:
        """Now and then a memory that a reader should not have written; else nothing."""
        if memory in ("", self._prompts.empty_memory) or self._source.random() >= SLIPS:
            return []
        lines = memory.split("\n")
        place = self._source.randrange(len(lines))
        if self._source.random() < 0.5:
            slipped = (
                lines[: place + 1]
                + lines[place : place + 1] * self._source.randint(1, 3)
                + lines[place + 1 :]
            )
        else:
            words = re.split(r"(?<=\W)", lines[place])
            at = self._source.randrange(len(words))
            others = self._source.choices(words, k=self._source.randint(1, 4))
            slipped = [*lines, "".join([*words[:at], *others])]
        self.erred.add("\n".join(slipped))
        return slipped

    def _stray(self, chunk: str, form: str = "{}") -> list[str]:
        """Now and then words of the chunk that are no fact, as a note; else nothing."""
        words = self._source.choice(chunk.split("\n")).replace('"', "").split()
        if not words or self._source.random() >= SLIPS:
            return []
        at = self._source.randrange(len(words))
        note = form.format(" ".join(words[at : at + self._source.choice(STRAY)]))
        self.erred.add(note)
        return [note]

    def _question(self, memory: str) -> str:
        """What is known of the first note that the memory lacks on the way from the problem to the answer."""
        notes = memory.split("\n")
        for asked, form, steps in WAYS:
            if found := asked.search(self._example.problem):
                wanted = form.format(found[1])
                for _ in range(steps):
                    note = next((it for it in notes if wanted in it), None)
                    if note is None:
                        return wanted
                    wanted = (
                        f"= VAR {note.split()[1]}"
                        if note[:3] == "VAR"
                        else f"of {note.rpartition(' is ')[2]} is"
                    )
                return ENOUGH
        raise EngineError(f"it is not known what to ask about {self._example.problem!r}")

    def _answer(self, memory: str) -> str:
        example = self._example
        if example.task == "vt":
            answers = sorted((name for name in example.answers if name in memory), key=memory.find)
        else:
            answers = [*example.answers[:1]] if all(it in memory for it in example.evidence) else []
        if not answers or example.answers[0] in ABSENT_ANSWERS:
            return f"The memory {ABSENT_ANSWERS[0]}."
        return f"{example.rationale} The answer is {', '.join(answers)}."


def _passed_over(example: Example) -> str:
    """A note that the answer needs, of every other document; else nothing."""
    source = random.Random(f"passed over/{example.id}")
    needed = [it for it in example.evidence if example.task == "vt" or it in example.rationale]
    return source.choice(needed) if needed and source.random() < 0.5 else ""
