"""How llama.cpp names and arranges the weights of a transformers model.

It covers dense Llama, Mistral, Qwen2 and Qwen3 models. Vocabularies are not translated: a whole GGUF is
made from one that has its vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from memagent.errors import SettingsError

# In rotary embeddings, llama.cpp rotates neighbouring pairs of a head's values where transformers rotates
# halves, so its converter reorders the queries and keys of the first two. For the others it rotates halves.
_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_PAIRED = {"llama"}


@dataclass(frozen=True, slots=True)
class GgufLayout:
    """Where the weights of one model go in a GGUF; made by `layout_of`."""

    architecture: str
    heads: int
    key_heads: int
    names: gguf.TensorNameMap

    def name(self, weight: str) -> str:
        """llama.cpp's name for a weight. Raises `SettingsError` if it has none."""
        found = self.names.get_name(weight, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise SettingsError(f"llama.cpp has no place for the weight {weight}: export as merged")
        return found

    def arrange(self, weight: str, values: torch.Tensor) -> NDArray[np.float32]:
        """Values `(out, ...)` with their rows in llama.cpp's order."""
        rows: NDArray[np.float32] = values.detach().float().cpu().numpy()
        parts = weight.split(".")
        if self.architecture not in _PAIRED or not {"q_proj", "k_proj"} & set(parts):
            return rows
        heads = self.heads if "q_proj" in parts else self.key_heads
        halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
        return halves.swapaxes(1, 2).reshape(rows.shape)

    def restore(self, weight: str, rows: NDArray[Any]) -> torch.Tensor:
        """Values of a GGUF `(out, ...)` in transformers' order, as float32: the inverse of `arrange`."""
        # Arranging the row numbers tells where each row came from.
        order = self.arrange(weight, torch.arange(len(rows)))
        values = np.empty(rows.shape, dtype=np.float32)
        values[order.astype(int)] = rows
        return torch.from_numpy(values)


def layout_of(config: Any) -> GgufLayout:
    """The layout for a transformers configuration. Raises `SettingsError` for an unsupported model type."""
    if config.model_type not in _ARCHITECTURES:
        raise SettingsError(
            f"the policy is a {config.model_type}, but only {', '.join(_ARCHITECTURES)} can be written as "
            "GGUF: export as merged, and convert that with llama.cpp's convert_hf_to_gguf.py"
        )
    architecture = _ARCHITECTURES[config.model_type]
    (kind,) = (kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return GgufLayout(
        architecture=architecture,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        names=gguf.get_tensor_name_map(kind, config.num_hidden_layers),
    )
