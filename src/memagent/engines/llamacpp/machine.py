"""What this process may use of the machine, by its affinity and its container's limits."""

from __future__ import annotations

import os
from pathlib import Path


def available_cores() -> int:
    """The number of physical cores that this process may use."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {
        _text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        for cpu in allowed
    }
    quota, _, period = _text("/sys/fs/cgroup/cpu.max").partition(" ")
    share = int(quota) // int(period) if quota.isdigit() and period.isdigit() else len(cores)
    return max(1, min(len(cores), share))


def memory_bytes() -> int | None:
    """The memory that this process may use, in bytes; None if unknown."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    limit = _text("/sys/fs/cgroup/memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def _text(path: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except OSError:
        return ""
