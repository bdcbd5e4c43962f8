"""The model being trained, as a whole or through a LoRA, and the log-probabilities of sampled tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from memagent.engines.gguf import catalogue
from memagent.engines.torch.engine import choose_dtype, load_model
from memagent.engines.torch.lora import with_adapter
from memagent.engines.torch.prefill import logits_at
from memagent.errors import SettingsError, TrainingError, extra_hint
from memagent.training.data import load_function
from memagent.training.optimization.attention import attention_over_trees
from memagent.training.optimization.sequences import Batch
from memagent.training.settings import Layout, PolicySettings


@dataclass(frozen=True, slots=True)
class TokenValues:
    """For each completion token of a batch: its log-probability, and the entropy of its distribution."""

    logprobs: torch.Tensor  # (tokens,)
    entropy: torch.Tensor  # (tokens,), without gradient


class Policy:
    """A causal language model with its tokenizer; made by `load_policy`.

    `temperature` is the sampler's: log-probabilities are those of the distribution that was sampled from.
    Trained weights are float32; with `autocast`, the arithmetic is bfloat16.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, temperature: float = 1.0, autocast: bool = False
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.temperature = temperature
        self.autocast = autocast
        self._reference: dict[str, torch.Tensor] = {}

    @property
    def has_adapter(self) -> bool:
        """Whether a LoRA is trained and the base model stays unchanged."""
        return hasattr(self.model, "disable_adapter")

    @property
    def network(self) -> PreTrainedModel:
        """The transformers model, including the LoRA's layers if there is one."""
        network: PreTrainedModel = self.model.get_base_model() if self.has_adapter else self.model
        return network

    @property
    def device(self) -> torch.device:
        """The device it computes on."""
        return self.network.device

    def trained_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are trained, by name."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def weights(self) -> dict[str, torch.Tensor]:
        """The trained weights, on the CPU, for a checkpoint."""
        return {name: value.detach().cpu() for name, value in self.trained_parameters().items()}

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Load the weights of a checkpoint. Raises `TrainingError` if they belong to another policy."""
        trained = self.trained_parameters()
        ours, theirs = ({name: value.shape for name, value in state.items()} for state in (trained, weights))
        if ours != theirs:
            raise TrainingError("the checkpoint is for another policy: weights differ in name or shape")
        with torch.no_grad():
            for name, value in weights.items():
                trained[name].copy_(value)

    def values(self, batch: Batch) -> TokenValues:
        """The values of a batch's completion tokens, with gradient. The batch is on the policy's device."""
        arguments: dict[str, Any] = {"trees": batch.trees} if batch.trees else {}
        network = self.network
        precision = torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)
        attention = attention_over_trees(network) if batch.trees else nullcontext()
        with precision, attention, logits_at(network, batch.indices):
            logits = network(
                input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, **arguments
            ).logits  # (logits, vocabulary)
        chosen = logits[batch.select].float() / self.temperature  # (tokens, vocabulary)
        logprobs = torch.log_softmax(chosen, dim=-1)
        flat = logprobs.detach()
        entropy = -(flat.exp() * flat).sum(-1)
        return TokenValues(logprobs.gather(-1, batch.targets[:, None])[:, 0], entropy)

    def keep_reference(self, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Keep a copy of the current policy as the reference, or the `weights` of a checkpoint."""
        source = self.trained_parameters() if weights is None else weights
        self._reference = {name: value.detach().to(self.device, copy=True) for name, value in source.items()}

    def reference_logprobs(self, batch: Batch) -> torch.Tensor:
        """The log-probabilities of the same tokens under the reference `(completion tokens,)`."""
        if not self._reference:
            raise ValueError("there is no reference: call keep_reference before training")
        trained = self.trained_parameters()
        now = {name: value.data for name, value in trained.items()}
        try:
            for name, value in trained.items():
                value.data = self._reference[name]
            with torch.no_grad():
                return self.values(batch).logprobs
        finally:
            for name, value in trained.items():
                value.data = now[name]

    @contextmanager
    def training(self, layout: Layout) -> Iterator[None]:
        """Enable gradient checkpointing within the block, if the settings ask for it.

        Checkpointing repeats the forward pass during the backward pass, so the attention of the batches'
        layout stays in place. Dropout stays off: the policy that learns is the one that sampled.
        """
        for module in self.network.modules():
            module.training = getattr(module, "gradient_checkpointing", False)
        try:
            with nullcontext() if layout == "padded" else attention_over_trees(self.network):
                yield
        finally:
            self.model.eval()


def load_policy(settings: PolicySettings, temperature: float, seed: int, device: str | None = None) -> Policy:
    """The policy that the settings describe, on a GPU if there is one.

    Raises `SettingsError` for a model or adapter that cannot be loaded, or a function that does not exist.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = choose_dtype(settings.dtype, device)
    torch.manual_seed(seed)
    has_lora = bool(settings.adapter or settings.lora_rank)
    name = settings.model or str(catalogue.find_default())
    model, tokenizer = load_model(name, dtype if has_lora else torch.float32, settings.random_weights)
    if settings.prepare:
        with torch.no_grad():
            load_function(settings.prepare)(model)
    model = model.to(device)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    if has_lora:
        model = _with_lora(model, settings)
    return Policy(model.eval(), tokenizer, temperature=temperature, autocast=dtype == torch.bfloat16)


def _with_lora(model: Any, settings: PolicySettings) -> Any:
    if settings.adapter:
        return with_adapter(model, Path(settings.adapter), trainable=True)
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise SettingsError(f"{error}: a LoRA needs peft, {extra_hint('train')}") from error
    targets = settings.lora_targets
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)
