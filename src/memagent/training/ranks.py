"""Several processes that train one policy, each with its own GPU and its share of the attempts.

Every process has all weights and computes the gradient of its own sequences; their sum is the same as in one
process. Started by `accelerate launch`; in a single process, nothing here has any effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")

_PATIENCE = timedelta(hours=6)  # while one evaluates, the others wait


class Ranks:
    """One of the training processes: `number` of `count`."""

    def __init__(self) -> None:
        self._accelerator: Any = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from accelerate import Accelerator, InitProcessGroupKwargs

            patience = InitProcessGroupKwargs(timeout=_PATIENCE)
            self._accelerator = Accelerator(kwargs_handlers=[patience])
        self.number: int = self._accelerator.process_index if self._accelerator else 0
        self.count: int = self._accelerator.num_processes if self._accelerator else 1
        self.device: str | None = str(self._accelerator.device) if self._accelerator else None

    @property
    def main(self) -> bool:
        """Whether this is the process that writes and evaluates."""
        return self.number == 0

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """The share of the items that this process handles."""
        return items[self.number :: self.count]

    def gather(self, items: list[Item]) -> list[Item]:
        """The items of all processes, in the order of the processes."""
        if not self._accelerator:
            return items
        from accelerate.utils import gather_object

        gathered: list[Item] = gather_object(items)
        return gathered

    def total(self, value: float) -> float:
        """The sum over all processes."""
        return sum(self.gather([value]))

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Give every process the sum of all gradients; one without work adds zeros."""
        if not self._accelerator:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad = self._accelerator.reduce(parameter.grad, reduction="sum")

    def wait(self) -> None:
        """Wait until all processes have got here."""
        if self._accelerator:
            self._accelerator.wait_for_everyone()

    def close(self) -> None:
        """Leave the group once all processes have got here: one that exits inside it may abort."""
        if self._accelerator:
            self.wait()
            self._accelerator.end_training()
