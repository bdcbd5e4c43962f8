"""Published readers, known by their names: the settings that they were trained to read with.

Their prompts are their authors' and come from the user's own file: see docs/published-readers.md.
"""

from __future__ import annotations

from memagent.engines.adapters import Adapter
from memagent.types import Trained

_MEMAGENT = "rl-memoryagent-"
_BUDGETS = {"problem_tokens": 1024, "chunk_tokens": 5000, "memory_tokens": 1024, "answer_tokens": 1024}
_SETTINGS = {"temperature": 0.7, "top_p": 0.95, "chunk_ends": "exact"}


def find_trained(model: str, adapter: Adapter | None = None) -> Trained:
    """How a model was trained to read: as its adapter says, or by its name; empty if neither says so.

    Args:
        model: a name as a server, a hub or a file has it, such as `BytedTsinghua-SIA/RL-MemoryAgent-7B` or
            `RL-MemoryAgent-14B-Q4_K_M`.
        adapter: the adapter that it is used with.

    The published readers known are MemAgent's own (arXiv 2507.02259), by the settings of their quickstart.
    """
    if adapter is not None:
        return adapter.trained
    name = model.rstrip("/").rpartition("/")[2]
    if not name.lower().startswith(_MEMAGENT):
        return Trained()
    return Trained(_BUDGETS, workflow="overwrite", settings=_SETTINGS, published=name)
