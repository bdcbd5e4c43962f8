"""A notebook under random writing, adding, kills, undoing and a second process, against a model in Python."""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from facts import section
from function_engine import FunctionEngine, HeldEngine
from memagent import ReadSettings, SettingsError, open_document
from memagent.concurrency import drain
from memagent.notebooks import Addition, Notebook, Notebooks, Version

MEMORY = Path("/dev/shm")  # no disk to wait for
NAMES = ("a.txt", "b.txt", "c.txt")
SETTINGS = ReadSettings(
    workflow="gated", chunk_tokens=8, memory_tokens=500, answer_tokens=500, problem_tokens=20
)


def words_of(text: str) -> list[str]:
    return re.findall(r"\bN\d+\b", text)


def together(memory: Sequence[str], text: str) -> tuple[str, ...]:
    """What is remembered after a text has been read."""
    return tuple(dict.fromkeys((*memory, *words_of(text))))


def collect(prompt: str) -> str:
    """A memory of the words N1, N2, ... of what is read."""
    memory, chunk = section(prompt, "memory"), section(prompt, "chunk")
    before = words_of(memory)
    if not chunk:
        return " ".join(before)
    after = together(before, chunk)
    return "MEMORY\n" + " ".join(after) if len(after) > len(before) else "UNCHANGED"


@dataclass
class Read:
    """A file as it was when it was read, from character `start` on."""

    name: str
    content: str
    start: int


@dataclass
class Expected:
    """A version as the model has it."""

    parent: int
    memory: tuple[str, ...]
    read: list[Read]


@dataclass
class Begun:
    """An addition that was killed."""

    base: int
    read: list[Read]
    spent: int = 0


@dataclass
class Modelled:
    """What a notebook does, in plain Python."""

    versions: list[Expected] = field(default_factory=lambda: [Expected(0, (), [])])
    current: int = 0
    begun: Begun | None = None

    def lineage(self) -> Iterator[Expected]:
        number = self.current
        while number:
            yield self.versions[number]
            number = self.versions[number].parent

    def news(self, files: dict[str, str]) -> list[Read]:
        read = [portion for version in self.lineage() for portion in version.read]
        contents = {portion.content for portion in read}
        portions = []
        for name, content in sorted(files.items()):
            grown = [
                portion.content
                for portion in read
                if portion.name == name and content.startswith(portion.content)
            ]
            if content in contents:
                continue
            start = 0
            if grown:
                length = max(map(len, grown))
                if not content[length:].strip():
                    continue
                start = content.rfind("\n", 0, length) + 1
            contents.add(content)
            portions.append(Read(name, content, start))
        return portions

    def continued(self, files: dict[str, str]) -> list[Read]:
        """What was begun, if it is still there as it was."""
        if self.begun is None or self.begun.base != self.current:
            return []
        same = all(files.get(portion.name, "").startswith(portion.content) for portion in self.begun.read)
        return self.begun.read if same else []

    def commit(self, read: list[Read]) -> None:
        memory = self.versions[self.current].memory
        for portion in read:
            memory = together(memory, portion.content[portion.start :])
        self.versions.append(Expected(self.current, memory, read))
        self.current, self.begun = len(self.versions) - 1, None


class Living(RuleBasedStateMachine):
    """Files are written, appended to and removed; a notebook reads the folder."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.folder = self.home / "in"
        self.folder.mkdir()
        self.notebooks = Notebooks(self.home / "notebooks")
        self.notebook = Notebook.new("numbers", "keep the numbers", self.notebooks)
        self.model, self.files = Modelled(), dict[str, str]()

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    @rule(name=st.sampled_from(NAMES), words=st.lists(st.integers(1, 30), min_size=1, max_size=20))
    def write(self, name: str, words: list[int]) -> None:
        content = "".join(f"N{word}{' ' if word % 3 else chr(10)}" for word in words)
        (self.folder / name).write_text(content)
        self.files[name] = content

    @precondition(lambda self: self.files)
    @rule(index=st.integers(0, 2), more=st.sampled_from(["7", "\n", " N41 N42", "\nN43\nN44 x", "  \n"]))
    def append(self, index: int, more: str) -> None:
        name = sorted(self.files)[index % len(self.files)]
        self.files[name] += more
        (self.folder / name).write_text(self.files[name])

    @precondition(lambda self: self.files)
    @rule(index=st.integers(0, 2), new=st.sampled_from(NAMES))
    def move(self, index: int, new: str) -> None:
        name = sorted(self.files)[index % len(self.files)]
        content = self.files.pop(name)
        (self.folder / name).replace(self.folder / new)
        self.files[new] = content

    def addition(self, engine: HeldEngine) -> Addition:
        notebook = Notebook("numbers", Notebooks(self.home / "notebooks"))
        return notebook.add(open_document(self.folder), engine, SETTINGS)

    def ended(self, addition: Addition, engine: HeldEngine) -> None:
        """All that was new is in, each word once, and what was begun was paid once."""
        versions, spent = list(addition.versions), engine.paid
        if read := self.model.continued(self.files):
            pending = self.model.begun
            first = versions.pop(0)
            self.model.commit(read)
            assert pending and pending.spent + spent == first.spent.calls + sum(
                version.spent.calls for version in versions
            )
        if read := self.model.news(self.files):
            self.model.commit(read)
            versions.pop(0)
        assert not versions

    def killed(self, versions: Sequence[Version], engine: HeldEngine) -> None:
        """A kill leaves what was there; only a version that was begun before may have been finished."""
        before = self.model.begun
        read, spent = self.model.continued(self.files), engine.paid
        if read and before:
            spent += before.spent
        for version in versions:
            self.model.commit(read)
            read, spent = [], spent - version.spent.calls
        self.model.begun = Begun(self.model.current, read or self.model.news(self.files), spent)

    @precondition(lambda self: self.files)
    @rule(kills=st.lists(st.integers(0, 3), max_size=2), change=st.booleans(), more=st.integers(0, 2))
    def add(self, kills: list[int], change: bool, more: int) -> None:
        """Killed after so many calls, and run again; meanwhile the folder may change."""
        for most in kills:
            self.add_once(most)
            if change:
                self.append(more, "\nN51 N52\n" if more else "8")
        self.add_once(None)

    @precondition(lambda self: self.files)
    @rule(most=st.integers(0, 4))
    def add_once(self, most: int | None) -> None:
        engine = HeldEngine(FunctionEngine(collect), math.inf if most is None else most)

        async def run() -> tuple[Addition, bool]:
            addition = self.addition(engine)

            async def read() -> None:
                await drain(aiter(addition))

            reading, hangs = asyncio.ensure_future(read()), asyncio.ensure_future(engine.held.wait())
            await asyncio.wait({reading, hangs}, return_when=asyncio.FIRST_COMPLETED)
            finished = reading.done()
            hangs.cancel()
            reading.cancel()
            await asyncio.gather(reading, hangs, return_exceptions=True)
            if finished:
                reading.result()
            return addition, finished

        addition, finished = asyncio.run(run())
        if finished:
            self.ended(addition, engine)
        else:
            self.killed(addition.versions, engine)

    @precondition(lambda self: self.model.current)
    @rule()
    def undo(self) -> None:
        before = self.model.versions[self.model.current]
        assert self.notebook.undo().number == before.parent
        self.model.current, self.model.begun = before.parent, None

    @precondition(lambda self: not self.model.current)
    @rule()
    def undo_of_nothing(self) -> None:
        with pytest.raises(SettingsError, match="nothing to undo"):
            self.notebook.undo()

    @precondition(lambda self: self.model.versions[self.model.current].memory)
    @rule()
    def second_process(self) -> None:
        """While one changes the notebook, another is refused and pays nothing; asking goes on."""

        async def others() -> None:
            engine = HeldEngine(FunctionEngine(collect))
            with pytest.raises(SettingsError, match="another process is changing"):
                await drain(aiter(self.addition(engine)))
            assert not engine.paid
            with pytest.raises(SettingsError, match="another process is changing"):
                self.notebook.undo()
            answer = await self.notebook.ask("which?", engine, SETTINGS)
            assert tuple(words_of(answer.answer)) == self.model.versions[self.model.current].memory
            assert engine.paid == 1

        claim = Notebooks(self.home / "notebooks").claim(1)
        assert claim
        with claim:
            asyncio.run(others())

    @invariant()
    def it_is_as_the_model_has_it(self) -> None:
        versions = self.notebook.versions()
        assert [version.number for version in versions] == list(range(1, len(self.model.versions)))
        for version, expected in zip(versions, self.model.versions[1:], strict=True):
            assert tuple(version.memory.split()) == expected.memory
            assert version.parent == expected.parent
            assert [
                (Path(portion.path).name, portion.start, portion.end) for portion in version.portions
            ] == [(portion.name, portion.start, len(portion.content)) for portion in expected.read]
        assert self.notebook.version().number == self.model.current


TestLiving = Living.TestCase
TestLiving.settings = hypothesis_settings(max_examples=8, stateful_step_count=12, deadline=None)
