"""The side door: workflows, formats and engines that packages bring along, found by their entry points.

Our workflows and engines come through it too: see `[project.entry-points]` in pyproject.toml.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from memagent.errors import SettingsError

Group = Literal["workflows", "formats", "engines"]

_OURS = "memagent."
_log = logging.getLogger(__name__)


@cache
def plugins(group: Group) -> Mapping[str, EntryPoint]:
    """What is installed of a group, by name; a package cannot replace what is ours."""
    found = sorted(entry_points(group=f"memagent.{group}"), key=lambda it: it.value.startswith(_OURS))
    return {it.name: it for it in found}


def load(group: Group, name: str) -> Any:
    """Load what has this name. Raises `SettingsError` if its package fails."""
    point = plugins(group)[name]
    try:
        return point.load()
    except Exception as error:  # the boundary: a package may raise anything
        package = point.dist.name if point.dist else point.value
        raise SettingsError(
            f"{name} of the package {package} cannot be loaded ({type(error).__name__}: {error}): "
            "update or uninstall that package"
        ) from error


@cache
def load_all(group: Group) -> dict[str, Any]:
    """Load all that is installed of a group; what fails is left out with a warning."""
    loaded: dict[str, Any] = {}
    for name in plugins(group):
        try:
            loaded[name] = load(group, name)
        except SettingsError as error:
            _log.warning("%s", error)
    return loaded
