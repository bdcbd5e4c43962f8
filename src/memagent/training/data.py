"""What a run learns from: examples and trajectories, from files and from functions that users name.

The order of examples depends only on the seed and the position.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import logging
import random
import sys
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cache, lru_cache
from itertools import islice, zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from memagent.errors import SettingsError
from memagent.tasks import load_examples
from memagent.tasks.corpora import is_sample, read_rows, sample_warning
from memagent.tasks.files import example_lines, new_file
from memagent.types import Example, TokenCounter, Trajectory

_TRAJECTORY = TypeAdapter(Trajectory)
_log = logging.getLogger(__name__)


def load_function(name: str) -> Callable[..., Any]:
    """The function that `module:function` or `file.py:function` names.

    Raises `SettingsError` if there is no such function, or if its module fails to load.
    """
    origin, _, function = name.rpartition(":")
    if not origin or not function:
        raise SettingsError(f"{name!r} names no function: write module:function or file.py:function")
    path = Path(origin)
    if path.suffix == ".py" and not path.is_file():
        raise SettingsError(f"there is no file {path}")
    try:
        module = _load_file(path) if path.suffix == ".py" else importlib.import_module(origin)
    except Exception as error:  # it is the user's code
        raise SettingsError(f"{origin} cannot be loaded ({type(error).__name__}: {error})") from error
    loaded = getattr(module, function, None)
    if not callable(loaded):
        raise SettingsError(f"{origin} has no function {function!r}")
    return loaded  # type: ignore[no-any-return]


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"memagent_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # a dataclass looks there
    spec.loader.exec_module(module)
    return module


class ExampleSource(NamedTuple):
    """A function from a number to an example, and how many examples there are; None if they have no end."""

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
        epoch, index = divmod(turn, source.size)
        return _take(source, self._order(number, epoch)[index])

    def first(self, count: int) -> list[Example]:
        """The first `count` examples, unshuffled; fewer if the sources are files that hold fewer."""
        turns = zip_longest(*(_take_all(source) for source in self._sources))
        return list(islice((example for turn in turns for example in turn if example is not None), count))

    def every(self, count: int) -> Iterator[Example]:
        """All examples of the files, and the first `count` of each function."""
        for source in self._sources:
            yield from islice(_take_all(source), source.size or count)

    def _shuffle(self, number: int, epoch: int) -> list[int]:
        order = list(range(self._sources[number].size or 0))
        random.Random(f"{self._seed}/{number}/{epoch}").shuffle(order)
        return order


def _take(source: ExampleSource, number: int) -> Example:
    example = source.example(number)
    if is_sample(example.haystack):
        warn_of_sample()
    return example


def _take_all(source: ExampleSource) -> Iterator[Example]:
    numbers = range(source.size) if source.size else itertools.count()
    return (_take(source, number) for number in numbers)


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


def _open_source(name: str, count_tokens: TokenCounter) -> ExampleSource:
    """A function, or a file: JSON lines stay on disk, a list or a gzipped file is kept in memory."""
    path = Path(name)
    if ":" in name and not path.exists():
        return ExampleSource(load_function(name))
    if path.suffix in (".json", ".gz"):
        examples = list(load_examples(path, count_tokens))
        source = ExampleSource(examples.__getitem__, len(examples))
    else:
        lines = list(example_lines(path))
        source = ExampleSource(lambda number: lines[number].example(count_tokens), len(lines))
    if not source.size:
        raise SettingsError(f"{path} holds no examples")
    return source


async def write_trajectories(path: str | Path, trajectories: AsyncIterable[Trajectory]) -> int:
    """Write the trajectories as they come and return how many there were.

    The file appears once it is complete. Raises `SettingsError` if it cannot be written, and if there are no
    trajectories: an existing file is then left as it is.
    """
    count = 0
    with new_file(Path(path)) as file:
        async for trajectory in trajectories:
            file.write(json.dumps(trajectory_row(trajectory)) + "\n")
            count += 1
        if not count:
            raise SettingsError(
                f"every attempt failed, earned too little or was cut at its limit, so {path} is not written: "
                "lower the least reward, raise the limits, or try more examples, samples or a better model"
            )
    return count


def read_trajectories(path: str | Path) -> Iterator[Trajectory]:
    """The trajectories of a file, one in memory at a time.

    A file has one trajectory per JSON line, and is gzipped if its name ends in .gz. It holds text only: token
    ids would be of another model's tokenizer. Raises `SettingsError` for a file that cannot be read or holds
    none, and names a row that is wrong.
    """
    path, number = Path(path), 0
    for number, row in read_rows(path):
        try:
            yield _read_row(row)
        except ValueError as error:
            raise SettingsError(f"{path}, row {number} is not a trajectory: {error}") from error
    if not number:
        raise SettingsError(f"{path} holds no trajectories: collect some, perhaps with a lower least reward")


def trajectory_row(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as a row of a file: texts only, no token ids."""
    return {
        "example_id": trajectory.example_id,
        "answer": trajectory.answer,
        "reward": trajectory.reward,
        "conversations": [
            {
                "kind": conversation.kind,
                "chunk_index": conversation.chunk_index,
                "messages": [asdict(message) for message in conversation.messages],
                "reply": conversation.completion.text,
                "memory": conversation.memory,
            }
            for conversation in trajectory.conversations
        ],
    }


def _read_row(row: dict[str, Any]) -> Trajectory:
    """A row's trajectory. Raises `ValueError` if it is not one."""
    try:
        for conversation in row["conversations"]:
            conversation["completion"] = {"text": conversation.pop("reply")}
        return _TRAJECTORY.validate_python(row)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("each of its conversations needs a reply") from error
