"""Find the texts that tasks are made from: the user's own file, a fetched one, or the small sample.

The sample comes with the package so that every task runs anywhere; its scores compare with nothing.
Fetching is in `fetch.py`.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Literal

from memagent.errors import SettingsError
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
"""Each corpus and where it is to be had."""

# A sentence ends at a mark, with what closes after it, before a capital or a digit; not after "Mr.".
SENTENCE_END = re.compile(
    r"(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bNo\.)(?<=[.!?\"'”’)]) (?=[\"'“‘(]?[A-Z0-9])"
)
_ENDS = re.compile(r"[.!?][\"'”’)]*$")


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus's file. `origin` tells whether the user gave it, or it was fetched, or is the sample."""

    name: str
    path: Path
    origin: Literal["given", "fetched", "sample"]


@dataclass(frozen=True, slots=True)
class Essays:
    """A text as words, and the numbers of the words at which its sentences start.

    Read on past its end, it begins again.
    """

    words: tuple[str, ...]
    starts: tuple[int, ...]

    def sentences_within(self, words: int) -> int:
        """How many sentences start within so many words."""
        rounds, rest = divmod(words, len(self.words))
        return rounds * len(self.starts) + bisect_left(self.starts, rest)

    def start(self, sentence: int) -> int:
        """The number of the word at which a sentence starts."""
        rounds, rest = divmod(sentence, len(self.starts))
        return rounds * len(self.words) + self.starts[rest]


@dataclass(frozen=True, slots=True)
class Corpora:
    """The user's own files, by corpus; what is not named is looked for (`find`)."""

    given: tuple[tuple[str, Path], ...] = ()

    def find(self, name: str) -> Corpus:
        """The file of a corpus. Raises `SettingsError` if there is none, saying where to get one."""
        for given, path in self.given:
            if given == name:
                if not path.exists():
                    raise SettingsError(f"--{name}: there is no file {path}")
                return Corpus(name, path, "given")
        for folder, origin in ((fetched_path(), "fetched"), (SAMPLE, "sample")):
            for path in [*sorted(folder.glob(f"{name}.*")), folder / name]:
                if path.exists():
                    return Corpus(name, path, "fetched" if origin == "fetched" else "sample")
        raise SettingsError(
            f"no {name} here: {HOMES[name]}; then name it with --{name}, or put it at "
            f"{fetched_path() / name}.json (or .jsonl, .jsonl.gz)"
        )

    def essays(self) -> Essays:
        """The essays. Raises `SettingsError` if there are none."""
        path = self.find("essays").path
        return _essays(path, path.stat().st_mtime_ns)


def fetched_path() -> Path:
    """The folder of what was fetched, and where files can be put by hand."""
    return user_cache_path() / "corpora"


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON list or of JSON lines, gzipped or not. Raises `SettingsError`."""
    text = read_text(path)
    try:
        if text.lstrip()[:1] == "[":
            yield from json.loads(text)
            return
        try:
            yield json.loads(text)  # one object that holds everything, such as SQuAD's
        except json.JSONDecodeError:
            yield from (json.loads(line) for line in text.split("\n") if line.strip())
    except json.JSONDecodeError as error:
        raise SettingsError(f"{path} is not JSON: {error}") from error


def read_text(path: Path) -> str:
    """The text of a file, unzipped if its name ends in .gz. Raises `SettingsError`."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error


@lru_cache(maxsize=4)
def _essays(path: Path, _changed: int) -> Essays:
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
