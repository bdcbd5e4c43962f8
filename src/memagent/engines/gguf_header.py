"""Read numbers from a GGUF file's header, without parsing the vocabulary as the `gguf` package does."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes, by GGUF type
_WHOLE = {4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
_STRING, _ARRAY = 8, 9


def read_window(path: Path) -> int | None:
    """The context length of a model, in tokens; None where its header has none. Raises as `whole_numbers`."""
    return next((value for key, value in whole_numbers(path) if key.endswith(".context_length")), None)


def whole_numbers(path: Path) -> Iterator[tuple[str, int]]:
    """The integer fields of a GGUF's header as key and value, in file order.

    The `gguf` package would take longer for this than llama.cpp takes to load a small model. Raises
    `OSError`, and `ValueError`, `KeyError` or `struct.error` for a file that is not a GGUF.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("no GGUF")
        _version, _tensors, pairs = _unpack(file, "<IQQ")
        for _ in range(pairs):
            key = file.read(min(_unpack(file, "<Q")[0], 65535))
            (kind,) = _unpack(file, "<I")
            if form := _WHOLE.get(kind):
                yield key.decode("utf-8", "replace"), _unpack(file, form)[0]
            else:
                _skip(file, kind)


def _skip(file: BinaryIO, kind: int, count: int = 1) -> None:
    if kind in _SIZES:
        file.seek(_SIZES[kind] * count, os.SEEK_CUR)
        return
    for _ in range(count):
        if kind == _ARRAY:
            _skip(file, *_unpack(file, "<IQ"))
        elif kind == _STRING:
            file.seek(_unpack(file, "<Q")[0], os.SEEK_CUR)
        else:
            raise ValueError(f"unknown type {kind}")


def _unpack(file: BinaryIO, form: str) -> tuple[int, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))
