"""Run a Hugging Face model in this process, decoding concurrent calls as one batch.

Completions hold what training needs: the id and the log-probability of each sampled token. Calls that arrive
while a batch runs make the next one.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from memagent.engines.adapters import find_adapter, find_trained, name_with
from memagent.engines.gguf.catalogue import find_verdicts
from memagent.errors import ContextOverflowError, EngineError, SettingsError, extra_hint
from memagent.settings import DEFAULT_WINDOW_TOKENS, Dtype, EngineSettings
from memagent.types import Completion, Message, Model, Sampling, Trained, Usage

try:
    import torch
    from jinja2 import TemplateError
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoTokenizer,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )

    from memagent.engines.torch.chats import chat_ids, token_counter
    from memagent.engines.torch.decoding import Calls, DecodingRow, decode, fail, finish, leave
    from memagent.engines.torch.lora import with_adapter
except ImportError as error:
    raise SettingsError(
        f"{error}: Hugging Face models and training need more packages, {extra_hint('train')}"
    ) from error

_MAX_ROWS = 16
_GATHER_SECONDS = 0.005


class TransformersEngine:
    """Completes chats with a loaded model; belongs to one event loop at a time.

    The model's weights may change between calls; each call uses them as they are. `name` defaults to where
    the model was loaded from, `window_tokens` (prompt and completion together) to what its configuration
    says, at most 8192. `most_rows` bounds the calls in a batch. With `half_precision`, float32 weights
    compute in bfloat16. `trained` is what its adapter was trained with. If that is for verdicts alone,
    `judges` names it, and all other calls are made within `without_adapter()`, which leaves it out.

    Raises `SettingsError` for a tokenizer without a chat template.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
        window_tokens: int | None = None,
        most_rows: int = _MAX_ROWS,
        half_precision: bool = False,
        trained: Trained | None = None,
        judges: str = "",
        without_adapter: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        name = name or str(model.name_or_path) or type(model).__name__
        if not tokenizer.chat_template:
            raise SettingsError(
                f"the model {name} has no chat template: use its instruct version, "
                "or put a chat_template.jinja into its folder"
            )
        known = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        window = window_tokens or min(known or DEFAULT_WINDOW_TOKENS, DEFAULT_WINDOW_TOKENS)
        tokenizer_name = str(tokenizer.name_or_path) or name
        self.model = Model(
            name, token_counter(tokenizer), tokenizer_name, window, most_rows, trained or Trained(),
            reads_turn_tokens=False, judges=judges,
        )  # fmt: skip
        self._network = model
        self._tokenizer = tokenizer
        self._most_rows = most_rows
        self._half_precision = half_precision
        self._without_adapter = without_adapter
        self._callers = 0
        self._changed = asyncio.Event()
        self._calls = Calls(most_rows)
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete the chat, in one batch with other waiting calls.

        `completion_ids` are the tokens as sampled, including the one that ended the text; `logprobs`
        are their log-probabilities under the softmax of the logits divided by the temperature,
        before `top_p` cuts it (at temperature 0: under the softmax of the logits as they are).

        With a seed, the result does not depend on the other calls, up to rounding: a larger batch
        may add floats in another order, which can tip a close choice.

        Raises `ContextOverflowError` if the prompt and `max_tokens` exceed the window, else
        `EngineError`.
        """
        if self._closed:
            raise EngineError("the engine is closed: open a new one")
        prompt_ids = self._prompt_ids(messages, sampling)
        adapted = sampling.verdict or not self.model.judges
        row = DecodingRow(prompt_ids, sampling, asyncio.get_running_loop().create_future(), adapted=adapted)
        self._calls.add(row)
        self._changed.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        await row.finished
        # The clean-up that some tokenizers still ask for removes spaces from the text.
        text = self._tokenizer.decode(
            row.completion_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return Completion(
            text=str(text),
            finish_reason="stop" if row.completion_ids[-1] in self._stop_ids() else "length",
            prompt_ids=tuple(row.prompt_ids),
            completion_ids=tuple(row.completion_ids),
            logprobs=tuple(row.logprobs),
            usage=Usage(len(row.prompt_ids), len(row.completion_ids)),
            alternatives={
                str(self._tokenizer.decode([token_id])): value for token_id, value in row.alternatives[::-1]
            },
        )

    @contextmanager
    def caller(self) -> Iterator[None]:
        """Announce a caller that makes one call after another.

        While any are announced, a batch starts once each of them waits. So batches are full, and the same
        callers get the same batches each time, however busy the machine is.
        """
        self._callers += 1
        try:
            yield
        finally:
            self._callers -= 1
            self._changed.set()

    async def aclose(self) -> None:
        """Fail all waiting and running calls with `EngineError`, and return once the model is idle."""
        self._closed = True
        self._calls.give_up()
        if self._worker is not None and not self._worker.done():
            await asyncio.wait([self._worker])

    def _prompt_ids(self, messages: tuple[Message, ...], sampling: Sampling) -> list[int]:
        if sampling.max_tokens < 1:
            raise EngineError(f"max_tokens is {sampling.max_tokens}: it must be above 0")
        try:
            rendered = chat_ids(self._tokenizer, messages, thinking=sampling.thinking)
        except TemplateError as error:
            roles = ", ".join(message.role for message in messages)
            raise EngineError(
                f"the chat template of {self.model.name} refuses messages of {roles} ({error}): "
                "use `templates` without a system prompt, or another `model`"
            ) from error
        window = self.model.window_tokens or DEFAULT_WINDOW_TOKENS
        if len(rendered) + sampling.max_tokens > window:
            raise ContextOverflowError(
                f"the prompt has {len(rendered)} tokens and up to {sampling.max_tokens} may follow, "
                f"but the window of {self.model.name} has {window}: send a shorter prompt"
            )
        return rendered

    def _stop_ids(self) -> frozenset[int]:
        """The tokens that end a completion. Some models list the end of text but not that of a turn."""
        listed = getattr(self._network.generation_config, "eos_token_id", None)
        ids = listed if isinstance(listed, list) else [listed]
        return frozenset(number for number in (*ids, self._tokenizer.eos_token_id) if number is not None)

    async def _work(self) -> None:
        """Run batch after batch until nothing waits; the next call then starts another worker.

        So an idle engine holds no task, and can be used from one event loop after another.
        """
        try:
            while self._calls.waiting:
                await self._gather()
                if self._calls.begin(in_order=self._callers > 0):
                    await self._run()
        finally:
            self._calls.give_up()

    async def _gather(self) -> None:
        """Wait while more calls come in: callers just answered usually make another."""
        while 0 < len(self._calls.waiting) < self._callers:
            self._changed = asyncio.Event()  # a used one belongs to the event loop that waited for it
            await self._changed.wait()
        seen = len(self._calls.waiting) if self._callers else 0
        while seen < len(self._calls.waiting) < self._most_rows:
            seen = len(self._calls.waiting)
            await asyncio.sleep(_GATHER_SECONDS)

    async def _run(self) -> None:
        # Announced callers get the same batches, and so the same rounding, each time: no call leaves early.
        on_end = None if self._callers else leave
        rows, stop_ids = self._calls.running, self._stop_ids()
        context = nullcontext if rows[0].adapted else self._without_adapter
        try:
            with context():
                await asyncio.to_thread(decode, self._network, rows, stop_ids, self._half_precision, on_end)
        except Exception as error:  # noqa: BLE001 - the boundary: it fails only the calls of this batch
            traceback.clear_frames(error.__traceback__)  # they hold the tensors of the failed batch
            advice = ": lower `concurrency`, or rollout.rows in training" if ran_out_of_memory(error) else ""
            cause = f"{type(error).__name__}: {error}"
            fail(rows, f"{self.model.name} failed on a batch of {len(rows)} ({cause}){advice}", error)
        finish(rows)


def ran_out_of_memory(error: Exception) -> bool:
    """Whether PyTorch could not allocate memory; on a CPU, only the text of its error tells."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


async def open_transformers(settings: EngineSettings) -> TransformersEngine:
    """An engine for `settings.model`: a Hugging Face folder, a hub id, or a .gguf file.

    It runs on a CUDA device if there is one. Raises `SettingsError` for a model or adapter that cannot be
    loaded, and for a model without a chat template.
    """
    if settings.model is None:
        raise SettingsError("no model is named: name a Hugging Face folder or id with `model`")
    adapter = await asyncio.to_thread(find_adapter, settings, "transformers")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = choose_dtype(settings.dtype, device)
    model, tokenizer = await asyncio.to_thread(load_model, settings.model, dtype)
    model = model.to(device)
    verdicts = find_verdicts(Path(settings.model), adapter)
    if adapter:
        model = await asyncio.to_thread(lambda: with_adapter(model, adapter.path).merge_and_unload())
    elif verdicts:
        model = await asyncio.to_thread(lambda: with_adapter(model, verdicts).to(dtype))
    name, most_rows = name_with(settings.model, adapter), settings.concurrency or _MAX_ROWS
    return TransformersEngine(
        model, tokenizer, name=name, window_tokens=settings.window_tokens, most_rows=most_rows,
        trained=find_trained(settings.model, adapter), judges=verdicts.name if verdicts else "",
        without_adapter=model.disable_adapter if verdicts else nullcontext,
    )  # fmt: skip


def choose_dtype(requested: Dtype, device: str) -> torch.dtype:
    """The numbers to compute in; "auto" is bfloat16 on a GPU, which is made for it, and float32 elsewhere."""
    half = requested == "bfloat16" or (requested == "auto" and device.startswith("cuda"))
    return torch.bfloat16 if half else torch.float32


def load_model(name: str, dtype: torch.dtype, random_weights: bool = False) -> tuple[Any, Any]:
    """Load the model and tokenizer of a Hugging Face folder, a hub id, or a .gguf file, on the CPU.

    With `random_weights`, no weights are loaded. Raises `SettingsError` if the model cannot be loaded.
    """
    file = Path(name) if name.endswith(".gguf") else None
    source, options = (str(file.parent), {"gguf_file": file.name}) if file else (name, {})
    try:
        if file and not file.is_file():  # else its folder would be looked up on the hub, slowly
            raise FileNotFoundError("there is no such file")
        tokenizer: Any = AutoTokenizer.from_pretrained(source, **options)
        factory: Any = AutoModelForCausalLM
        if random_weights:
            model = factory.from_config(AutoConfig.from_pretrained(source, **options), dtype=dtype)
        else:
            model = factory.from_pretrained(source, dtype=dtype, **options)
        return model, tokenizer
    except Exception as error:  # a bad file can raise the errors of half a dozen libraries
        raise SettingsError(
            f"the model {name} cannot be loaded ({type(error).__name__}: {error}): name a folder with "
            "config.json, tokenizer and weights, or an id of the Hugging Face hub while it is in reach"
        ) from error
