"""Adding to a notebook: what it has not yet read of a document, judged by the bytes, is read into it.

A file whose bytes were read before is skipped, wherever it is now; one in the state in which it was read is
skipped without reading it. A plain-text file in UTF-8 that has only grown since is read from the line where
it grew. Any other change makes it a new file.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO

from memagent.documents.files import (
    BLOCK_BYTES,
    DocumentFile,
    FileState,
    UnusableError,
    bytes_at,
    prefix_digests,
    state_of,
)
from memagent.documents.opening import Document, characters_of, text_document
from memagent.documents.tokens import fewest_tokens
from memagent.errors import SettingsError
from memagent.notebooks.library import EMPTY, ClaimedError, Notebooks, Portion, Version
from memagent.reading.progress import Progress
from memagent.reading.read import Read
from memagent.reading.workflows import choose_workflow
from memagent.settings import ReadSettings
from memagent.types import ESTIMATE, Conversation, Engine, Model

_POLL_SECONDS = 0.2
_UTF8 = ("utf-8", "utf-8-sig")
_MAX_LINE_BYTES = 64 * 1024


class Addition:
    """Adds what is new in a document to a notebook. Iterate over it once, for the conversations.

    `read` is what is being read now. `versions` are those that it made: none if nothing was new, and two if
    it also finished an interrupted read. `known` names the files that had already been read, `skipped` says
    what was left out and why. `unnoted` names the files that left the memory empty: they make no version and
    still count as new.

    Raises `SettingsError`, `DocumentError` or `EngineError`; what was read by then is kept for the next
    addition of the same files.
    """

    def __init__(
        self,
        notebooks: Notebooks,
        id: int,
        document: Document,
        engine: Engine,
        settings: ReadSettings,
        waiting: Callable[[], None] | None,
    ) -> None:
        self.read: Read | None = None
        self.versions: tuple[Version, ...] = ()
        self.known: tuple[str, ...] = ()
        self.unnoted: tuple[str, ...] = ()
        self.skipped = document.skipped
        self._unnoted: tuple[Portion, ...] = ()
        self._notebooks, self._id = notebooks, id
        self._document, self._engine, self._waiting = document, engine, waiting
        # Everything is read to its end: what counts as read must have been read. Sources are noted now,
        # because the files may be gone by the time somebody asks.
        self._settings = settings.to_the_end().replace(cite=True)

    @property
    def progress(self) -> Progress:
        """How far the current read has come."""
        return self.read.progress if self.read else Progress()

    async def __aiter__(self) -> AsyncGenerator[Conversation, None]:
        """The conversations, each as soon as it is finished."""
        with await self._claim():
            more = True
            while more:
                base, news, more = await asyncio.to_thread(self._next)
                if not news.portions:
                    return
                async with aclosing(self._take(base, news)) as conversations:
                    async for conversation in conversations:
                        yield conversation

    async def _claim(self) -> IO[str]:
        """Claim the notebook; if another process has it, say so once and wait. Raises `ClaimedError`."""
        waiting = self._waiting
        while True:
            try:
                return await asyncio.to_thread(self._notebooks.claim, self._id)
            except ClaimedError:
                if self._waiting is None:
                    raise
            if waiting:
                waiting()
            waiting = None
            await asyncio.sleep(_POLL_SECONDS)

    def _next(self) -> tuple[Version, _News, bool]:
        """The version to build on, what to read, and whether more may follow: interrupted reads go first."""
        lineage = self._notebooks.lineage(self._id)
        base = lineage[-1] if lineage else EMPTY
        unfinished = self._notebooks.find_unfinished(self._id, base.number)
        if unfinished and (news := _find_again(self._document, unfinished)):
            return base, news, True
        earlier = [portion for version in lineage for portion in version.portions]
        news = _find_new(self._document, [*earlier, *self._unnoted])
        read_now = self._unnoted, *(version.portions for version in self.versions)
        just_read = {portion.name for portions in read_now for portion in portions}
        self.known = tuple(name for name in news.known if name not in just_read)
        if news.portions:
            self._notebooks.begin(self._id, base.number, news.portions)
        return base, news, False

    async def _take(self, base: Version, news: _News) -> AsyncGenerator[Conversation, None]:
        """Read some news, and make a version from it."""
        notebooks, model = self._notebooks, self._engine.model
        about = (await asyncio.to_thread(notebooks.entry_of, self._id)).about
        settings = settings_of(base, self._settings)
        read = self.read = Read(
            about,
            news.document,
            self._engine,
            settings,
            trace=await asyncio.to_thread(notebooks.journals, self._id, base.number),
            resume=True,
            memory=base.memory,
            statements=base.statements,
            answers=False,
        )
        budget_tokens = (await asyncio.to_thread(lambda: read.budgets)).memory_tokens
        if budget_tokens < base.memory_tokens or model.name != base.model:
            await asyncio.to_thread(check_memory, base.memory, settings, model)
        try:
            async with aclosing(aiter(read)) as conversations:
                async for conversation in conversations:
                    yield conversation
        except UnusableError:
            if read.blocks.replaced or any(source.named for source in news.document.sources):
                raise
        finally:
            self.skipped = tuple(dict.fromkeys((*self.skipped, *read.blocks.skipped)))
        if not read.memory or not read.blocks.replaced:
            self.unnoted += tuple(read.blocks.replaced)
            self._unnoted += news.portions
            await asyncio.to_thread(notebooks.abandon, self._id)
            return
        names = ("memory", "model", "workflow", "chunks", "document_tokens", "spent", "cut")
        values = {name: getattr(read.result, name) for name in names} | {
            "portions": tuple(portion for portion in news.portions if portion.name in read.blocks.replaced),
            "memory_tokens": budget_tokens,
            "statements": read.progress.statements,
        }
        self.versions += (await asyncio.to_thread(notebooks.commit, self._id, values, base.number),)


def settings_of(version: Version, settings: ReadSettings) -> ReadSettings:
    """The settings with the workflow that wrote a version, whose memory others may not understand."""
    if settings.workflow or not version.workflow:
        return settings
    return settings.replace(workflow=version.workflow)


def check_memory(memory: str, settings: ReadSettings, model: Model) -> None:
    """Raise `SettingsError` if a memory is too long for a read to start or answer from. Blocks."""
    _, workflow = choose_workflow(settings, model.trained)
    # An estimate must not refuse what might fit.
    tokens = (fewest_tokens if model.tokenizer == ESTIMATE else model.count_tokens)(memory)
    if tokens > (most := workflow.most_memory_tokens(settings, model)):
        raise SettingsError(
            f"the memory has {tokens} tokens, but its budget is {most}: raise `memory_tokens`, "
            "or use a model with a larger window"
        )


def note_document(text: str) -> Document:
    """A note as a document that shows the model its date. Raises `SettingsError` for an empty note."""
    if not text.strip():
        raise SettingsError("the note is empty: write something into it")
    note = text_document(text, f"note of {datetime.now().astimezone():%Y-%m-%d}")
    return Document(note.sources, titled=True)


@dataclass(frozen=True, slots=True)
class _News:
    """What to read: a document, with a portion for each of its sources; `known` names what to skip."""

    document: Document
    portions: tuple[Portion, ...]
    known: tuple[str, ...] = ()


def _find_new(document: Document, read: Iterable[Portion]) -> _News:
    """Find the parts of a document that have not been read. Raises `DocumentError`."""
    seen: set[str] = set()
    by_path: defaultdict[str, list[Portion]] = defaultdict(list)
    for portion in read:
        seen.add(portion.sha256)
        by_path[portion.path].append(portion)
    sources: list[DocumentFile] = []
    fresh: list[Portion] = []
    known: list[str] = []
    for source in document.sources:
        path, size, state = _path_of(source), source.size_bytes, state_of(source)
        earlier = by_path[path]
        if path and state in (
            FileState(portion.end, portion.mtime_ns, portion.ctime_ns) for portion in earlier
        ):
            known.append(source.name)
            continue
        shorter = [portion for portion in earlier if path and portion.end < size]
        digests = prefix_digests(source, {size, *(portion.end for portion in shorter)})
        grown = [portion.end for portion in shorter if digests.get(portion.end) == portion.sha256]
        if digests[size] in seen or (grown and _is_blank(source, max(grown))):
            known.append(source.name)
            continue
        seen.add(digests[size])
        start = _line_start(source, max(grown)) if grown else 0
        sources.append(_slice(source, start, size))
        stored = state.to_keep()
        times = stored.mtime_ns, stored.ctime_ns
        fresh.append(Portion(source.name, path, digests[size], start, size, *times))
    return _News(_title(document, sources), tuple(fresh), tuple(known))


def _find_again(document: Document, portions: Sequence[Portion]) -> _News | None:
    """Find the same portions again; None if the document lacks one of them. Raises `DocumentError`."""
    by_path: defaultdict[str, list[DocumentFile]] = defaultdict(list)
    for source in document.sources:
        by_path[_path_of(source)].append(source)
    sources: list[DocumentFile] = []
    for portion in portions:
        for source in by_path[portion.path]:
            fits = source.encoding or source.size_bytes == portion.end  # what is converted is read whole
            if fits and prefix_digests(source, {portion.end}).get(portion.end) == portion.sha256:
                sources.append(_slice(source, portion.start, portion.end))
                break
        else:
            return None
    return _News(_title(document, sources), tuple(portions))


def _title(document: Document, sources: Sequence[DocumentFile]) -> Document:
    """A document of some sources that shows the model the name of a file even if there is only one."""
    return Document(tuple(sources), document.skipped, document.titled or any(map(_path_of, sources)))


def _path_of(source: DocumentFile) -> str:
    return os.path.realpath(source.origin) if isinstance(source.origin, Path) else ""


def _slice(source: DocumentFile, start: int, end: int) -> DocumentFile:
    if (start, end) == (0, source.size_bytes):
        return source
    rest = replace(source, start=start, size_bytes=end - start, beginning=None)
    if not start:
        return rest
    before = characters_of(replace(source, size_bytes=start, beginning=None))
    rest = replace(rest, characters_before=before, title=f"{source.title} (continued)")
    return replace(rest, named=False)  # it is no error if it has no new text


def _line_start(source: DocumentFile, offset: int) -> int:
    """The start of the line that contains a byte; 0, for the whole file, if that cannot be determined."""
    if source.format not in ("text", "jsonl") or source.gzipped or source.encoding not in _UTF8:
        return 0
    before = bytes_at(source.origin, max(0, offset - _MAX_LINE_BYTES), min(offset, _MAX_LINE_BYTES))
    end = before.rfind(b"\n")
    return offset - len(before) + end + 1 if end >= 0 else 0


def _is_blank(source: DocumentFile, offset: int) -> bool:
    pieces = (
        bytes_at(source.origin, start, min(BLOCK_BYTES, source.size_bytes - start))
        for start in range(offset, source.size_bytes, BLOCK_BYTES)
    )
    return not any(piece.strip() for piece in pieces)
