"""The side door: workflows, formats and engines of other packages, found by their entry points.

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
# What a plug-in must have; the rest of memagent is not imported here to check more.
_NEEDED: Mapping[Group, tuple[str, ...]] = {
    "workflows": ("run", "prompts", "options", "budgets"), "formats": ("__call__",), "engines": ("__call__",)
}  # fmt: skip
_log = logging.getLogger(__name__)


@cache
def plugins(group: Group) -> Mapping[str, EntryPoint]:
    """The installed plug-ins of a group, by name, ours first; a package cannot replace one of ours."""
    points = entry_points(group=f"memagent.{group}")
    ours = [point for point in points if point.value.startswith(_OURS)]
    return {point.name: point for point in (*ours, *points, *ours)}


def load(group: Group, name: str) -> Any:
    """Load the plug-in of this name. Raises `SettingsError` if its package fails, or if it is not one."""
    point = plugins(group)[name]
    try:
        plugin = point.load()
        for attribute in _NEEDED[group]:
            if not hasattr(plugin, attribute):
                raise TypeError(f"{point.value} is a {type(plugin).__name__} without {attribute}")
    except (Exception, SystemExit) as error:  # the boundary: a package may raise anything
        package = point.dist.name if point.dist else point.value
        raise SettingsError(
            f"{name} of the package {package} cannot be loaded ({type(error).__name__}: {error}): "
            "update or uninstall that package"
        ) from error
    return plugin


@cache
def load_all(group: Group) -> dict[str, Any]:
    """Load all plug-ins of a group; one that fails is left out with a warning."""
    loaded: dict[str, Any] = {}
    for name in plugins(group):
        try:
            loaded[name] = load(group, name)
        except SettingsError as error:
            _log.warning("%s", error)
    return loaded
