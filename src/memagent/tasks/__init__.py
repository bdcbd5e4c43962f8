"""Examples to read: RULER's thirteen tasks, question sets of any size, LongBench, a user's own rows.

`examples(task, recipe, count)` makes them, `load_examples` reads them from a file; `scoring` scores answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from memagent.errors import SettingsError
from memagent.tasks import longbench, longbench_v2, needle, qa, words
from memagent.tasks.corpora import Corpora
from memagent.tasks.files import load_examples, write_examples
from memagent.tasks.recipe import Recipe, Task
from memagent.types import Example

TASKS: dict[str, Task] = {
    task.name: task for module in (needle, words, qa, longbench, longbench_v2) for task in module.tasks()
}
"""Every task by name."""

RULER = tuple(name for name in TASKS if name.startswith(("niah_", "qa_")) or name in ("vt", "cwe", "fwe"))
"""The names of RULER's thirteen tasks."""


def examples(task: str, recipe: Recipe, count: int, start: int = 0) -> Iterator[Example]:
    """`count` examples of a task from number `start` on, each made when it is asked for.

    Raises `SettingsError` at once for an unknown task, or if the recipe asks for absent answers and the task
    has none; while iterating, for a recipe that does not suit the task, or a set with too few questions.
    """
    resolved_task = task_named(task)
    if recipe.absent and not resolved_task.can_be_absent:
        raise SettingsError(f"{task} has no examples without the answer: leave `absent` out")
    make = resolved_task.make
    return (make(recipe, index) for index in range(start, start + count))


def task_named(name: str) -> Task:
    """The task called `name`. Raises `SettingsError` if there is none."""
    if name not in TASKS:
        raise SettingsError(f"there is no task {name!r}: use one of {', '.join(TASKS)}")
    return TASKS[name]


__all__ = [
    "RULER", "TASKS", "Corpora", "Recipe", "Task", "examples", "load_examples", "task_named",
    "write_examples",
]  # fmt: skip
