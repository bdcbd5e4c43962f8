"""A memory of verbatim excerpts: its text, from which it can be rebuilt, and what a reply may change in it.

The text is written here and never by a model. Each excerpt has a line below that of its file, such as
`E1 "words" (page 3, 120-180, promoted)`; line breaks in it are escaped, so that no document can add a line. A
reply names excerpts by number and quotes passages; a passage that is not in the chunk is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from memagent.errors import SettingsError
from memagent.prompts import ENOUGH, MEMORY, UNCHANGED
from memagent.reading.quotes import is_telling, says
from memagent.reading.sources import Source, file_span, find_in_chunk, source_at
from memagent.types import Chunk

ADD, DROP, PROMOTE = "ADD", "DROP", "PROMOTE"

_LINE = re.compile(r'E\d+ "(.*)" \((?:page (\d+), )?(\d+)-(\d+)(, promoted)?\)')
_FILE = re.compile(r'file "(.*)"')
_ESCAPES = {"\\": r"\\", "\n": r"\n", "\r": r"\r"}
_ESCAPED = re.compile(r"\\([\\nr])")
_COMMAND = re.compile(
    rf"[\s\-*•>`#]*(?:\d+[.)]\s*)?({ADD}|{DROP}|{PROMOTE})\b[\s*`]*:?[\s*`]*(.*)", re.IGNORECASE
)
_NUMBERS = re.compile(r"(?:[\s,;&\[\]]|and\b|E?\d++)++[.`*]*", re.IGNORECASE)
_QUOTED = re.compile(r"[\"“„«](.+)[\"”“»]", re.DOTALL)
_OPEN, _CLOSED = re.compile(r"\s*[\"“„«]"), re.compile(r"[\"”“»][.`*\s]*\Z")
_SHOWN = re.compile(r"\A\W*E\d+[.:)\]\s]*")
_BEFORE = re.compile(r"(?:\b(?:the|an?)\s+)?[\"“„«'‘(\[]*\Z", re.IGNORECASE)
_BEHIND = re.compile(r"[.!?…;。！？]*[\"”»'’)\]」』]*")

_MAX_TRIES = 64  # to find where a passage of several lines ends


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A verbatim passage of a document, with its place; promoted ones are dropped last."""

    source: Source
    promoted: bool = False


def memory_of(excerpts: Iterable[Excerpt]) -> str:
    """The memory that holds these excerpts, numbered from 1."""
    lines, file = list[str](), None
    for number, excerpt in enumerate(excerpts, 1):
        source = excerpt.source
        if source.file != file:
            file = source.file
            lines.append(f'file "{escape(file)}"')
        page = "" if source.page is None else f"page {source.page}, "
        promoted = ", promoted" if excerpt.promoted else ""
        lines.append(f'E{number} "{escape(source.excerpt)}" ({page}{source.start}-{source.end}{promoted})')
    return "\n".join(lines)


def excerpts_of(memory: str) -> list[Excerpt]:
    """The excerpts in a memory. Raises `SettingsError` for a text that is not such a memory."""
    excerpts, file = list[Excerpt](), None
    for line in memory.split("\n") if memory else ():
        if heading := _FILE.fullmatch(line):
            file = _unescape(heading[1])
        elif file is not None and (match := _LINE.fullmatch(line)):
            page = None if match[2] is None else int(match[2])
            source = Source(file, page, int(match[3]), int(match[4]), _unescape(match[1]))
            excerpts.append(Excerpt(source, match[5] is not None))
        else:
            raise SettingsError(
                f"the memory to start from does not consist of excerpts (its line {line[:60]!r} is not one): "
                "start without it, or read with the workflow that wrote it"
            )
    return excerpts


def escape(text: str) -> str:
    """A text escaped to fit on one line, as in a memory of excerpts."""
    return re.sub(r"[\\\n\r]", lambda match: _ESCAPES[match.group()], text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: {"\\": "\\", "n": "\n", "r": "\r"}[match[1]], text)


def edit(excerpts: Sequence[Excerpt], reply: str, chunk: Chunk) -> tuple[list[Excerpt], int]:
    """The excerpts after a reply to a chunk, and how many of the reply's passages were refused.

    The reply drops and promotes excerpts by the numbers of `memory_of`. A passage is kept if the chunk has
    its words (`memagent.reading.quotes`), and then in the chunk's own characters.
    """
    commands = _commands(reply.split("\n"), chunk)
    dropped, promoted = (
        _numbers(text for name, text in commands if name == word) for word in (DROP, PROMOTE)
    )
    edited = [
        replace(excerpt, promoted=excerpt.promoted or number in promoted)
        for number, excerpt in enumerate(excerpts, 1)
        if number not in dropped
    ]
    refused = 0
    for word, text in commands:
        if word == ADD and not any(_same(excerpt.source.excerpt, text) for excerpt in edited):
            source = find_quote(text, chunk)
            refused += source is None
            edited = _with(edited, source) if source else edited
    return edited, refused


def fit(excerpts: Sequence[Excerpt], fits: Callable[[str], bool]) -> list[Excerpt]:
    """The excerpts that fit in a memory: the oldest are dropped first, promoted ones after all others."""
    fitting = list(excerpts)
    while fitting and not fits(memory_of(fitting)):
        fitting.remove(next((excerpt for excerpt in fitting if not excerpt.promoted), fitting[0]))
    return fitting


def find_quote(text: str, chunk: Chunk) -> Source | None:
    """The passage of a chunk that a text quotes, in the chunk's own characters; None if there is none."""
    inside = _QUOTED.search(text)
    first, _, _ = text.partition("\n")
    for words in dict.fromkeys((text, inside[1] if inside else text, first)):
        if is_telling(words) and (span := find_in_chunk(chunk, words)):
            return source_at(chunk, *_round(chunk, *span))
    return None


def _round(chunk: Chunk, start: int, end: int) -> tuple[int, int]:
    """A span, extended in its file by an article and quotation mark before it and punctuation after it."""
    low, high = (offset - chunk.start for offset in file_span(chunk, start))
    first, last = start - chunk.start, end - chunk.start
    before = _BEFORE.search(chunk.text, max(first - 8, low), first)
    behind = _BEHIND.match(chunk.text, last, high)
    start, end = before.start() if before else first, behind.end() if behind else last
    return chunk.start + start, chunk.start + end


def _commands(lines: Sequence[str], chunk: Chunk) -> list[tuple[str, str]]:
    """The commands of a reply, each a word with its text; if no line is a command, all lines are passages.

    A passage may span several lines, even lines that look like commands if the chunk has them so.
    """
    commands, index = list[tuple[str, str]](), 0
    marked = any(_COMMAND.fullmatch(line) for line in lines)
    while index < len(lines):
        command = _COMMAND.fullmatch(lines[index])
        word, text = (command[1].upper(), command[2]) if command else (ADD, _SHOWN.sub("", lines[index]))
        index += 1
        if not command and marked:
            continue
        words = re.findall(r"\w+", text.upper())
        if word == ADD and (not words or words in ([UNCHANGED], [MEMORY], [ENOUGH], ["NONE"])):
            continue
        if word == ADD and command:
            text, index = _whole(text, lines, index, chunk)
        commands.append((word, text))
    return commands


def _whole(text: str, lines: Sequence[str], index: int, chunk: Chunk) -> tuple[str, int]:
    """A passage with the lines from `index` on that belong to it, and the index of the next command."""
    if _OPEN.match(text):
        closed = [number for number in range(index, len(lines)) if _CLOSED.search(lines[number])]
        for last in closed[: -_MAX_TRIES - 1 : -1]:
            whole = "\n".join([text, *lines[index : last + 1]])
            if find_in_chunk(chunk, whole):
                return whole, last + 1
    end = next(
        (number for number in range(index, len(lines)) if _COMMAND.fullmatch(lines[number])), len(lines)
    )
    return "\n".join([text, *lines[index:end]]).rstrip(), end


def _numbers(texts: Iterable[str]) -> set[int]:
    """The numbers in those of the texts that contain nothing else."""
    return {
        int(number) for text in texts if _NUMBERS.fullmatch(text) for number in re.findall(r"\d{1,9}", text)
    }


def _with(excerpts: Sequence[Excerpt], source: Source) -> list[Excerpt]:
    """The excerpts with one more, unless they already contain it; it replaces those within it."""
    if any(
        _holds(excerpt.source, source) or _same(excerpt.source.excerpt, source.excerpt)
        for excerpt in excerpts
    ):
        return list(excerpts)
    within = [excerpt for excerpt in excerpts if _holds(source, excerpt.source)]
    others = [excerpt for excerpt in excerpts if excerpt not in within]
    return [*others, Excerpt(source, any(excerpt.promoted for excerpt in within))]


def _holds(one: Source, other: Source) -> bool:
    """Whether one contains the other, in files of the same name and with the same words."""
    within = one.file == other.file and one.start <= other.start and other.end <= one.end
    return within and one.excerpt[other.start - one.start : other.end - one.start] == other.excerpt


def _same(one: str, other: str) -> bool:
    return says(one, other) and says(other, one)
