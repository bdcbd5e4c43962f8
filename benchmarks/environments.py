"""Environments for other people's packages, and processes that take jobs in them."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

PEERS = {
    "openai": ["openai>=2.8"],
    "langchain": ["langchain-classic>=1.0", "langchain-openai>=1.0"],
    "llamaindex": ["llama-index-core>=0.14", "llama-index-llms-openai-like>=0.5"],
    "bm25s": ["bm25s>=0.2", "openai>=2.8"],
    "langextract": ["langextract>=1.7", "openai>=2.8"],
}
"""What each environment installs; LlamaIndex's endpoint client pins an older openai."""


def environment(peer: str) -> Path:
    """The Python of a peer's environment, which is created if missing."""
    folder = user_cache_path("memagent-benchmarks", appauthor=False) / peer
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        print(f"making {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS[peer]], check=True)
    return python


class Process:
    """A script that prints its packages' versions, then answers each line of JSON with another."""

    def __init__(self, python: Path, script: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [python, script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._called = " ".join([script.name, *arguments])
        self.versions: dict[str, str] = self.answer()

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Give it a job and wait for the answer."""
        self.begin(job)
        return self.answer()

    def begin(self, job: dict[str, Any]) -> None:
        """Give it a job."""
        assert self._process.stdin
        print(json.dumps(job), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to its job."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._called} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """Kill the process, as `kill -9` does."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
