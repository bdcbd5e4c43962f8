"""Several processes that train one policy, each with its own GPU or CPU cores and its share of the rollouts.

Every process has all weights and computes the gradient of its own sequences; their sum is the same as in one
process. Started by `torchrun` or `accelerate launch`; in a single process, nothing here has any effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch

from memagent.errors import SettingsError

Item = TypeVar("Item")

_PATIENCE = timedelta(hours=6)  # while one evaluates, the others wait


class Ranks:
    """One of the training processes: `number` of `count`.

    Raises `SettingsError` if the others that the environment announces are not there.
    """

    def __init__(self) -> None:
        requested = int(os.environ.get("WORLD_SIZE", "1"))
        self._accelerator: Any = _accelerator() if requested > 1 else None
        self.number: int = self._accelerator.process_index if self._accelerator else 0
        self.count: int = self._accelerator.num_processes if self._accelerator else 1
        self.device: str | None = str(self._accelerator.device) if self._accelerator else None
        if self.count != requested:
            raise SettingsError(
                f"WORLD_SIZE is {requested}, but the training processes found are {self.count}: "
                "start them with torchrun or accelerate launch, or unset WORLD_SIZE for a single one"
            )

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


def _accelerator() -> Any:
    """accelerate, joined with the other processes; None for a process that no launcher has started."""
    if "LOCAL_RANK" not in os.environ:
        return None
    from accelerate import Accelerator, InitProcessGroupKwargs

    # Unless told otherwise, it looks for a GPU even without one, and takes each process for the only one.
    patience = InitProcessGroupKwargs(timeout=_PATIENCE)
    return Accelerator(cpu=not torch.cuda.is_available(), kwargs_handlers=[patience])
