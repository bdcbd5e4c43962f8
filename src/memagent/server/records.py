"""What the store keeps, as values: the files that clients sent, and the reads that they began."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memagent.server.schemas import State

UNFINISHED: tuple[State, ...] = ("queued", "running")

_MAX_SUFFIX_CHARACTERS = 8
_MAX_NAME_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a client sent."""

    number: int
    id: str
    owner: str
    name: str
    purpose: str
    bytes: int
    created: float


@dataclass(frozen=True, slots=True)
class Kept:
    """A document that a read keeps: a file, or a text that a client sent."""

    place: Path
    is_text: bool


Content = str | bytes | StoredFile | Kept | Path
"""A text, the bytes of a file, a file that a client sent, what a read keeps, or a file that the user has."""


@dataclass(frozen=True, slots=True)
class Job:
    """A read that a client began. `request` is what it asked for, `outcome` what came of it.

    An `attended` one runs only while someone listens. See `Jobs.begin`.
    """

    number: int
    id: str
    owner: str
    state: State
    created: float
    started: float | None
    ended: float | None
    bytes: int
    request: Mapping[str, Any]
    outcome: Mapping[str, Any]
    key: str | None
    attended: bool


def make_job(row: sqlite3.Row) -> Job:
    """Make a read from its row in the database."""
    values = {name: json.loads(row[name]) for name in ("request", "outcome")}
    return Job(**{**row, **values, "attended": bool(row["attended"])})


def clean_name(name: str | None) -> str:
    """Make a file's name fit to be shown: one line, without folders, not too long."""
    last = re.split(r"[/\\]", name or "")[-1]
    return "".join(it if it.isprintable() else " " for it in last)[-_MAX_NAME_CHARACTERS:].strip() or "file"


def suffix_of(name: str) -> str:
    """The suffix of a name, in lower case; "" if it cannot be a file's suffix."""
    suffix = Path(name).suffix[1:].lower()
    return (
        f".{suffix}"
        if suffix.isascii() and suffix.isalnum() and len(suffix) <= _MAX_SUFFIX_CHARACTERS
        else ""
    )
