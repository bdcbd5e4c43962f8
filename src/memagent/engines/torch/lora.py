"""Put a LoRA on a transformers model; how llama.cpp names and arranges the weights of such models.

Training keeps a LoRA apart from the weights, since rounding to bfloat16 would lose its small steps. The
engine merges it: reading in bfloat16 takes 0.6 of the time. GGUF is for dense Llama, Mistral, Qwen2 and Qwen3
models.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from memagent.errors import SettingsError, extra_hint

_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


def with_adapter(model: Any, adapter: Path, trainable: bool = False) -> Any:
    """A `PeftModel`: a transformers model with a LoRA in its layers.

    Args:
        model: the transformers model that the LoRA was made for.
        adapter: a PEFT folder, or a GGUF adapter of a Llama, Mistral, Qwen2 or Qwen3 model.
        trainable: whether the LoRA needs gradients.

    Raises `SettingsError` if peft is missing, or the adapter does not fit the model.
    """
    try:
        import peft
    except ImportError as error:
        raise SettingsError(f"{error}: an adapter needs peft, {extra_hint('train')}") from error
    try:
        if adapter.is_dir():
            adapted = peft.PeftModel.from_pretrained(model, adapter, is_trainable=trainable)
            saved = peft.utils.load_peft_weights(str(adapter), device="cpu")
        else:
            adapted, saved = _from_gguf(model, adapter, trainable)
        # PEFT ignores weights that the model has no layer for, and only warns of missing ones.
        used = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
        if odd := {name for name in saved.keys() ^ used.keys() if ".lora_" in name}:
            raise ValueError(f"{len(odd)} of its weights are for other layers, such as {min(odd)}")
    except Exception as error:  # a bad adapter can raise the errors of several libraries
        raise SettingsError(
            f"the adapter {adapter} cannot be used with {model.name_or_path} "
            f"({type(error).__name__}: {' '.join(str(error).split())}): name the model that it was made for"
        ) from error
    return adapted


def _from_gguf(model: Any, file: Path, trainable: bool) -> tuple[Any, dict[str, torch.Tensor]]:
    """Fold llama.cpp's scale, alpha / rank, into b, so that training continues with a scale of 1."""
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    reader, layout = gguf.GGUFReader(file), layout_of(model.config)
    alpha = reader.fields[gguf.Keys.Adapter.LORA_ALPHA].contents()
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    state: dict[str, torch.Tensor] = {}
    ranks: dict[str, int] = {}
    for path, layer in model.named_modules():
        name = layout.name(f"{path}.weight") if isinstance(layer, torch.nn.Linear) else ""
        if f"{name}.lora_a" not in tensors:
            continue
        a, b = tensors.pop(f"{name}.lora_a"), tensors.pop(f"{name}.lora_b")
        ranks[path] = len(a)
        b = layout.restore(f"{path}.weight", b) * alpha / len(a)
        state[f"base_model.model.{path}.lora_A.weight"] = torch.tensor(a, dtype=torch.float32)
        state[f"base_model.model.{path}.lora_B.weight"] = b
    if tensors:
        raise ValueError(f"it is for other layers, such as {min(tensors)}")
    most = max(ranks.values())
    others = {path: rank for path, rank in ranks.items() if rank != most}
    config = LoraConfig(
        r=most,
        lora_alpha=most,
        rank_pattern=others,
        alpha_pattern=others,
        target_modules=list(ranks),
        task_type="CAUSAL_LM",
        inference_mode=not trainable,
    )
    adapted = get_peft_model(model, config)
    set_peft_model_state_dict(adapted, state)
    return adapted, state


@dataclass(frozen=True, slots=True)
class GgufLayout:
    """Where the weights of one model go in a GGUF; made by `layout_of`."""

    architecture: str
    heads: int
    key_heads: int
    names: gguf.TensorNameMap

    def name(self, weight: str) -> str:
        """llama.cpp's name for a weight. Raises `SettingsError` if it has none."""
        tensor_name = self.names.get_name(weight, try_suffixes=(".weight", ".bias"))
        if tensor_name is None:
            raise SettingsError(f"llama.cpp has no place for the weight {weight}: export as merged")
        return tensor_name

    def arrange(self, weight: str, values: torch.Tensor) -> NDArray[np.float32]:
        """Values `(out, ...)` with their rows in llama.cpp's order."""
        # In rotary embeddings, llama.cpp rotates neighbouring pairs of a head's values for its architecture
        # `llama`, where transformers rotates halves.
        rows: NDArray[np.float32] = values.detach().float().cpu().numpy()
        parts = weight.split(".")
        if self.architecture != "llama" or not {"q_proj", "k_proj"} & set(parts):
            return rows
        heads = self.heads if "q_proj" in parts else self.key_heads
        halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
        return halves.swapaxes(1, 2).reshape(rows.shape)

    def restore(self, weight: str, rows: NDArray[Any]) -> torch.Tensor:
        """Values of a GGUF `(out, ...)` in transformers' order, as float32: the inverse of `arrange`."""
        # Arranging the row numbers shows where each row came from.
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
