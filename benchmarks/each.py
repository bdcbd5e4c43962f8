"""`memagent ask --each` over many small files, repeatedly killed with signal 9 and restarted.

Prints how many files have an answer, how many calls were paid for, how long the runs took, and the same for
further runs with nothing changed and with one file changed. The endpoint is a server on loopback that answers
at once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from server import Server, facts_document


def start(server: Server, folder: Path, calls: int) -> subprocess.Popen[str]:
    """Start one run of the command."""
    command = [
        *(sys.executable, "-m", "memagent", "ask", "--each", "Which facts?", str(folder / "docs"), "--quiet"),
        *("--out", str(folder / "table.csv"), "--base-url", server.base_url, "--concurrency", str(calls)),
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "XDG_CONFIG_HOME": str(folder)}
    )


def kill_after(process: subprocess.Popen[str], server: Server, calls: int) -> bool:
    """Kill a run once it has paid for `calls` calls; False if it ended before."""
    until = len(server.paid) + calls
    while process.poll() is None and len(server.paid) < until:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    return process.returncode != 0


def measure(files: int, kills: int, calls: int) -> dict[str, Any]:
    """Make the runs and return the measurements."""
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as name, Server() as server:
        folder = Path(name)
        (folder / "docs").mkdir()
        for number in range(files):
            (folder / "docs" / f"{number:06}.txt").write_text(facts_document(2, number), "utf-8")
        begun = time.perf_counter()
        killed = sum(
            kill_after(start(server, folder, calls), server, chance.randrange(1, 2 * files // (kills + 1)))
            for _ in range(kills)
        )
        first = start(server, folder, calls).communicate()[0].strip()
        seconds, paid, twice = time.perf_counter() - begun, len(server.paid), server.paid_twice
        time.sleep(2)  # so that the times of the files are no longer too recent to be trusted
        begun = time.perf_counter()
        same = start(server, folder, calls).communicate()[0].strip()
        unchanged_seconds, unchanged_paid = time.perf_counter() - begun, len(server.paid) - paid
        (folder / "docs" / "000000.txt").write_text(facts_document(2, files), "utf-8")
        changed = start(server, folder, calls).communicate()[0].strip()
        return {
            "files": files,
            "killed": killed,
            "end": first.partition(": ")[2],
            "seconds": round(seconds, 1),
            "paid_calls": paid,
            "paid_twice": twice,
            "nothing_new": same.partition(": ")[2],
            "nothing_new_seconds": round(unchanged_seconds, 1),
            "nothing_new_paid": unchanged_paid,
            "one_changed": changed.partition(": ")[2],
            "one_changed_paid": len(server.paid) - paid - unchanged_paid,
            "most_memory_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
        }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--calls", type=int, default=16, help="concurrent calls")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    measured = measure(options.files, options.kills, options.calls)
    for name, value in measured.items():
        print(f"{name:>20}: {value}")
    if options.json:
        options.json.write_text(json.dumps({"command": sys.argv, **measured}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
