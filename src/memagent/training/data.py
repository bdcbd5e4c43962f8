"""The examples of a run, in an order that depends only on the seed and the position."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from memagent.errors import SettingsError
from memagent.tasks import load_examples
from memagent.tasks.corpora import is_sample, sample_warning
from memagent.tasks.files import example_lines
from memagent.training.rewards import load_function
from memagent.types import Example, TokenCounter

_log = logging.getLogger(__name__)


class ExampleSource(NamedTuple):
    """A function from a number to an example, and how many examples there are; None if there is no end."""

    example: Callable[[int], Example]
    size: int | None = None


class Data:
    """Examples from several sources, which take turns. Each pass over a file has a new order."""

    def __init__(self, sources: Sequence[ExampleSource], seed: int) -> None:
        self._sources = sources
        self._seed = seed
        self._order = lru_cache(maxsize=len(sources))(self._shuffle)

    def at(self, position: int) -> Example:
        """The example at a position, 0 and up. Raises `SettingsError` for a row that is not an example."""
        turn, number = divmod(position, len(self._sources))
        source = self._sources[number]
        if source.size is None:
            return _take(source, turn)
        epoch, place = divmod(turn, source.size)
        return _take(source, self._order(number, epoch)[place])

    def first(self, count: int) -> list[Example]:
        """The first `count` examples, unshuffled; fewer if the sources are files that hold fewer."""
        sizes = [it.size for it in self._sources if it.size is not None]
        if len(sizes) == len(self._sources):
            count = min(count, sum(sizes))
        found: list[Example] = []
        turn = 0
        while len(found) < count:
            found += [_take(it, turn) for it in self._sources if it.size is None or turn < it.size]
            turn += 1
        return found[:count]

    def _shuffle(self, number: int, epoch: int) -> list[int]:
        order = list(range(self._sources[number].size or 0))
        random.Random(f"{self._seed}/{number}/{epoch}").shuffle(order)
        return order


def _take(source: ExampleSource, number: int) -> Example:
    example = source.example(number)
    if is_sample(example.haystack):
        warn_of_sample()
    return example


@cache
def warn_of_sample() -> None:
    """Warn that the essays are only the sample: once, since a run takes examples for several uses."""
    _log.warning("%s", sample_warning("essays"))


def load_data(names: Sequence[str], seed: int, count_tokens: TokenCounter) -> Data:
    """The data of the named sources: files of examples, and functions from a number to an example.

    Raises `SettingsError` for a source that cannot be read or is empty, and if none is named.
    """
    if not names:
        raise SettingsError("which examples? set data.examples to a list of files or functions")
    return Data([_open_source(name, count_tokens) for name in names], seed)


def every_example(names: Sequence[str], count: int) -> Iterator[Example]:
    """All examples of the files, and the first `count` of each function; lengths are not in tokens.

    Raises `SettingsError` for a row that is not an example.
    """
    for name in names:
        yield from map(load_function(name), range(count)) if _is_function(name) else load_examples(name, len)


def _is_function(name: str) -> bool:
    return ":" in name and not Path(name).exists()


def _open_source(name: str, count_tokens: TokenCounter) -> ExampleSource:
    """A function, or a file: only the places of JSON lines are held, a list or gzipped file is held whole."""
    if _is_function(name):
        return ExampleSource(load_function(name))
    path = Path(name)
    if path.suffix in (".json", ".gz"):
        examples = list(load_examples(path, count_tokens))
        source = ExampleSource(examples.__getitem__, len(examples))
    else:
        lines = list(example_lines(path))
        source = ExampleSource(lambda number: lines[number].example(count_tokens), len(lines))
    if not source.size:
        raise SettingsError(f"{path} holds no examples")
    return source
