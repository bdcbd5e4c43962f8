"""The examples of JSONL files as a verl data set: a row refers to its example and does not hold the document.

verl copies every field of a row to each of its conversations, so a document in the row would be stored once
per chunk and attempt. The files must have the same path on all machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from memagent.documents.tokens import estimate_tokens
from memagent.errors import SettingsError
from memagent.tasks.files import ExampleLine, example_lines
from memagent.types import Example


class ExampleDataset(Dataset[dict[str, Any]]):  # type: ignore[misc, unused-ignore]
    """The examples of one or more files, for `data.custom_cls`; only the first `max_samples` if above 0.

    `data_files` are plain JSONL files, as `memagent data make` writes them. Every line is checked up front,
    so that a bad one stops the run before it begins. Raises `SettingsError`.
    """

    def __init__(
        self,
        data_files: str | list[str],
        tokenizer: Any = None,  # noqa: ARG002 - verl passes these to every data set
        config: Any = None,  # noqa: ARG002
        processor: Any = None,  # noqa: ARG002
        max_samples: int = -1,
    ) -> None:
        files = [data_files] if isinstance(data_files, str) else list(data_files)
        self._read_rows = [row for file in files for row in _read_rows(Path(file).expanduser().resolve())]
        if max_samples > 0:
            del self._read_rows[max_samples:]
        if not self._read_rows:
            raise SettingsError(f"there are no examples in {', '.join(map(str, files))}")

    def __len__(self) -> int:
        return len(self._read_rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The fields that verl needs, and `example`, from which `read_example` reads the rest."""
        return {**self._read_rows[index], "index": index}


def read_example(place: Mapping[str, Any]) -> Example:
    """The example that a row refers to. Raises `SettingsError` if its file is missing or has changed."""
    found = ExampleLine(Path(place["path"]), place["number"], place["offset"])
    example = found.example(estimate_tokens)
    if example.id != place["id"]:
        raise SettingsError(
            f"{found.path}, row {found.number} is not {place['id']}: the file was changed during the run"
        )
    return example


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".gz":
        raise SettingsError(f"{path} is gzipped, but examples are read by their offset: unpack it")
    for line in example_lines(path):
        example = line.example(estimate_tokens)
        yield {
            "raw_prompt": [{"role": "user", "content": example.problem}],
            "example": {"path": str(path), "offset": line.offset, "number": line.number, "id": example.id},
            "data_source": example.task,
            "reward_model": {"style": "rule", "ground_truth": list(example.answers)},
        }
