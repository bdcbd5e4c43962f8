"""The folder of a server: used by one at a time, and nothing in it is deleted because a database lacks it."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import IO

from memagent.errors import SettingsError, reason
from memagent.server.database import NAME
from memagent.storage import lock

_log = logging.getLogger("memagent.server")


def claim_folder(folder: Path) -> IO[str]:
    """Claim a folder for this server, until what this returns is closed.

    Raises `SettingsError` if it cannot be used, has files of others, or another server uses it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_ours(folder)
        claim = (folder / "lock").open("a")
        lock(claim)
    except BlockingIOError as error:
        raise SettingsError(
            f"{folder} is in use by another server: stop it, or name another folder with `data`"
        ) from error
    except OSError as error:
        raise SettingsError(f"{folder} cannot be used: {reason(error)}") from error
    return claim


def _check_ours(folder: Path) -> None:
    """Raise `SettingsError` for a folder that has files, but none of a server's: nothing in it is ours."""
    usual = {"lock", "lost+found"}  # of a server that begins at this moment, and of a new volume
    has_others = any(it.name not in usual for it in folder.iterdir())
    if has_others and not (folder / NAME).exists():
        raise SettingsError(
            f"{folder} holds files that are not a server's: name a new or empty folder with `data`"
        )


def set_aside(folder: Path, pattern: str, known: Collection[str]) -> None:
    """Move what is named like `pattern` and not `known` from `folder` to `set-aside` beside it.

    What is known again, since the right database was restored, is moved back. Raises `OSError`.
    """
    aside = folder.parent / "set-aside"
    unknown = [it for it in folder.glob(pattern) if it.name not in known and not (aside / it.name).exists()]
    for place in unknown:
        aside.mkdir(mode=0o700, exist_ok=True)
        place.replace(aside / place.name)
    if unknown:
        _log.warning("%d %s are not in %s: they were moved to %s", len(unknown), folder.name, NAME, aside)
    for place in aside.glob(pattern):
        if place.name in known and not (folder / place.name).exists():
            _log.warning("%s is in %s again: it was moved back", place.name, NAME)
            place.replace(folder / place.name)
