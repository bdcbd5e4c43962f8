"""Find the texts that tasks are made from: the user's own file, a fetched one, or the small sample.

The sample comes with the package so that every task runs anywhere; its scores cannot be compared with others.
Fetching is in `fetch.py`.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Any, Literal

from memagent.documents.files import FileState
from memagent.errors import SettingsError, reason
from memagent.settings import user_cache_path

SAMPLE = Path(__file__).parent / "sample"

HOMES = {
    "essays": "`memagent data fetch essays` gets RULER's (Paul Graham's essays), or any text file will do",
    "squad": "`memagent data fetch squad` gets RULER's (SQuAD 2.0 dev), rajpurkar.github.io/SQuAD-explorer",
    "hotpot": "`memagent data fetch hotpot` gets RULER's (HotpotQA dev distractor), hotpotqa.github.io",
    "2wiki": "2WikiMultihopQA's dev.json, from github.com/Alab-NII/2wikimultihop",
    "musique": "musique_ans_v1.0_dev.jsonl, from github.com/StonyBrookNLP/musique",
    "longbench": "LongBench's JSONL, a file or a folder, from github.com/THUDM/LongBench",
}
"""Where to get each corpus."""

# A sentence ends at a mark and its closing quotes, before a capital or a digit; not after "Mr.".
SENTENCE_END = re.compile(
    r"(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bNo\.)(?<=[.!?\"'”’)]) (?=[\"'“‘(]?[A-Z0-9])"
)
_BLOCK_CHARACTERS = 1 << 16
_LONGEST_LITERAL = 16  # an error this close to a block's end may be due to it
_ENDS = re.compile(r"[.!?][\"'”’)]*$")


Origin = Literal["given", "fetched", "sample"]


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus's file. `origin` tells whether the user gave it, or it was fetched, or is the sample."""

    name: str
    path: Path
    origin: Origin


@dataclass(frozen=True, slots=True)
class Essays:
    """A text as words, and the numbers of the words at which its sentences start.

    Past its end, the text begins again.
    """

    words: tuple[str, ...]
    starts: tuple[int, ...]

    def sentences_within(self, words: int) -> int:
        """How many sentences start within the first `words` words."""
        rounds, rest = divmod(words, len(self.words))
        return rounds * len(self.starts) + bisect_left(self.starts, rest)

    def start(self, sentence: int) -> int:
        """The number of the word at which a sentence starts."""
        rounds, rest = divmod(sentence, len(self.starts))
        return rounds * len(self.words) + self.starts[rest]


@dataclass(frozen=True, slots=True)
class Corpora:
    """The user's own files, by corpus; others are looked for (`find`).

    `questions` is a file of examples that limits a set of questions to those in the file, in the set's order.
    The passages of the others remain as distractors.
    """

    given: tuple[tuple[str, Path], ...] = ()
    questions: Path | None = None

    def find(self, name: str) -> Corpus:
        """The file of a corpus. Raises `SettingsError` if there is none, saying where to get one."""
        for given, path in self.given:
            if given == name:
                if not path.exists():
                    raise SettingsError(f"`{name}`: there is no file {path}")
                return Corpus(name, path, "given")
        folders: dict[Origin, Path] = {"fetched": fetched_path(), "sample": SAMPLE}
        for origin, folder in folders.items():
            for path in [*sorted(folder.glob(f"{name}.*")), folder / name]:
                if path.exists():
                    return Corpus(name, path, origin)
        raise SettingsError(
            f"{name} is missing ({HOMES[name]}): name its file with `{name}`, or put it at "
            f"{fetched_path() / name}.json (or .jsonl, .jsonl.gz)"
        )

    def essays(self) -> Essays:
        """The essays. Raises `SettingsError` if there are none."""
        path = self.find("essays").path
        return _essays(path, FileState.of(path))


def fetched_path() -> Path:
    """The folder for fetched files, where files can also be put by hand."""
    return user_cache_path() / "corpora"


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file, each with the line it starts at, one in memory at a time.

    The file is a JSON list, JSON lines, or one object (SQuAD's), gzipped if its name ends in .gz. Raises
    `SettingsError` if it cannot be read, or for a line that holds no object.
    """
    try:
        with opened(path, "rt") as file:
            yield from _objects(file, path)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise SettingsError(f"{path} cannot be read: {reason(error)}") from error


def _objects(file: IO[str], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    decoder, block = json.JSONDecoder(), _BLOCK_CHARACTERS
    text, at, line = file.read(block).removeprefix("\ufeff"), 0, 1
    listed = text.lstrip().startswith("[")
    between, ending = re.compile(r"[\s,[]*" if listed else r"\s*"), "]" if listed else ""
    while True:
        start = at
        if gap := between.match(text, at):
            at = gap.end()
        line += text.count("\n", start, at)
        try:
            found, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            cut_off = error.pos > len(text) - _LONGEST_LITERAL or error.msg.startswith("Unterminated")
            block = 2 * block if start == 0 else _BLOCK_CHARACTERS  # no object ended in the last one
            if cut_off and (more := file.read(block)):
                text, at = text[at:] + more, 0
                continue
            if text[at:].strip() == ending:
                return
            why = error.msg if text[at:].strip() else "the list has no end, so the file may be cut off"
            raise SettingsError(f"{path}, line {line} is not JSON: {why}") from error
        except (ValueError, RecursionError) as error:  # a number of too many digits, too many brackets
            raise SettingsError(f"{path}, line {line} is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise SettingsError(f"{path}, line {line} is not a JSON object")
        yield line, found
        line, at = line + text.count("\n", at, end), end


def opened(path: Path, mode: Literal["rt", "wt"]) -> IO[str]:
    """A text file, gzipped if its name ends in .gz."""
    opener: Callable[..., IO[str]] = gzip.open if path.suffix == ".gz" else open
    return opener(path, mode, encoding="utf-8")


def read_text(path: Path) -> str:
    """The text of a file, unzipped if its name ends in .gz. Raises `SettingsError`."""
    try:
        with opened(path, "rt") as file:
            return file.read().removeprefix("\ufeff")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise SettingsError(f"{path} cannot be read: {reason(error)}") from error


@lru_cache(maxsize=4)
def _essays(path: Path, _state: FileState) -> Essays:
    text = read_text(path)
    if path.suffixes[:1] == [".json"]:
        try:
            text = json.loads(text)["text"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise SettingsError(f'{path}: expected {{"text": "..."}}, or a text file') from error
    parts = SENTENCE_END.split(" ".join(text.split()))
    sentences: list[str] = []
    for part in parts:
        if sentences and not _ENDS.search(sentences[-1]):
            sentences[-1] += f" {part}"
        else:
            sentences.append(part)
    if not any(sentences):
        raise SettingsError(f"{path} holds no text")
    words = [sentence.split() for sentence in sentences]
    starts = accumulate((len(sentence) for sentence in words[:-1]), initial=0)
    return Essays(tuple(chain.from_iterable(words)), tuple(starts))
