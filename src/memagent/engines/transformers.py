"""A Hugging Face model in this process: concurrent calls are decoded together, as one batch.

It keeps what training needs: the token ids and the log-probability of each sampled token. What
several prompts of a batch begin with is computed once. Left out: joining a batch that already runs; a
server (vLLM, SGLang) behind the OpenAI engine does that.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from memagent.config import Settings
from memagent.engines.adapters import adapter_of, name_with, with_peft
from memagent.errors import ContextOverflowError, EngineError, SettingsError
from memagent.prefixes import shared_beginnings
from memagent.types import Completion, Message, Model, Sampling, Usage

try:
    import torch
    from jinja2 import TemplateError
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
except ImportError as error:
    raise SettingsError(f"{error}: this engine needs its extra, pip install 'memagent[train]'") from error

_MOST_WINDOW_TOKENS = 8192
_MOST_ROWS = 16
_SHORT_PROMPT_TOKENS = 512
_GATHER_SECONDS = 0.005


@dataclass(slots=True, eq=False)
class _Row:
    """One call, a row of a batch. `finished` is resolved once the row has ended or failed."""

    prompt_ids: list[int]
    sampling: Sampling
    finished: asyncio.Future[None]
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class TransformersEngine:
    """Completes chats with a loaded model; belongs to one event loop at a time.

    The model's weights may change between calls, and every call takes them as they are. `name`
    and `window_tokens` (prompt and completion together) are by default where the model was loaded
    from, and what its configuration says, at most 8192; `most_rows` bounds the calls of a batch. With
    `half_precision` float32 weights are computed with in bfloat16.

    Raises `SettingsError` for a tokenizer without a chat template.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
        window_tokens: int | None = None,
        most_rows: int = _MOST_ROWS,
        half_precision: bool = False,
    ) -> None:
        name = name or str(model.name_or_path) or type(model).__name__
        if not tokenizer.chat_template:
            raise SettingsError(
                f"the model {name} has no chat template: use its instruct version, "
                "or put a chat_template.jinja into its folder"
            )
        window = window_tokens or _window(model)
        self.model = Model(name, window, self._count_tokens, str(tokenizer.name_or_path) or name)
        self._network = model
        self._tokenizer = tokenizer
        self._most_rows = most_rows
        self._half_precision = half_precision
        self._callers = 0
        self._changed = asyncio.Event()
        self._waiting: list[_Row] = []
        self._running: list[_Row] = []
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    async def complete(self, messages: tuple[Message, ...], sampling: Sampling) -> Completion:
        """Complete the chat, in one batch with the calls that wait beside it.

        `completion_ids` are the tokens as sampled, the one that ended the text included; `logprobs`
        are their log-probabilities under the softmax of the logits divided by the temperature,
        before `top_p` cuts it (at temperature 0: under the softmax of the logits as they are).

        With a seed the result does not depend on the calls beside it, up to rounding: a larger
        batch may add up floats in another order, which can tip a choice that was close.

        Raises `ContextOverflowError` if the prompt and `max_tokens` exceed the window, else
        `EngineError`.
        """
        if self._closed:
            raise EngineError("the engine is closed: open a new one")
        prompt_ids = self._prompt_ids(messages, sampling)
        row = _Row(prompt_ids, sampling, asyncio.get_running_loop().create_future())
        self._waiting.append(row)
        self._changed.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        await row.finished
        # The clean-up that some tokenizers still ask for takes blanks out of the text.
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
        )

    @contextmanager
    def caller(self) -> Iterator[None]:
        """Announce somebody who makes one call after another.

        While there are such, a batch starts once each of them waits. So batches are full, and the same
        callers get the same batches each time, whatever the machine is busy with.
        """
        self._callers += 1
        try:
            yield
        finally:
            self._callers -= 1
            self._changed.set()

    async def aclose(self) -> None:
        """Fail what waits or runs with `EngineError`, and return once the model is at rest."""
        self._closed = True
        self._give_up()
        if self._worker is not None and not self._worker.done():
            await asyncio.wait([self._worker])

    def _count_tokens(self, text: str) -> int:
        return len(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _prompt_ids(self, messages: tuple[Message, ...], sampling: Sampling) -> list[int]:
        if sampling.max_tokens < 1:
            raise EngineError(f"max_tokens is {sampling.max_tokens}: it must be above 0")
        try:
            rendered = chat_ids(self._tokenizer, messages)
        except TemplateError as error:
            roles = ", ".join(message.role for message in messages)
            raise EngineError(
                f"the chat template of {self.model.name} refuses messages of {roles} ({error}): "
                "use --templates without a system prompt, or another --model"
            ) from error
        window = self.model.window_tokens or _MOST_WINDOW_TOKENS
        if len(rendered) + sampling.max_tokens > window:
            raise ContextOverflowError(
                f"the prompt has {len(rendered)} tokens and up to {sampling.max_tokens} may follow, "
                f"the window of {self.model.name} has {window}: send a shorter prompt"
            )
        return rendered

    def _stop_ids(self) -> frozenset[int]:
        """What ends a completion. Some models list the end of text but not that of a chat's turn."""
        listed = getattr(self._network.generation_config, "eos_token_id", None)
        ids = listed if isinstance(listed, list) else [listed]
        return frozenset(number for number in (*ids, self._tokenizer.eos_token_id) if number is not None)

    async def _work(self) -> None:
        """Run batch after batch until nothing waits; the next call then starts another worker.

        So an idle engine holds no task, and can be used from one event loop after another.
        """
        try:
            while self._waiting:
                await self._gather()
                self._running, self._waiting = _next_batch(self._waiting, self._most_rows)
                if self._running:
                    await self._run()
        finally:
            self._give_up()

    async def _gather(self) -> None:
        """Wait while more calls come in: those just answered mostly have a next one to make."""
        while 0 < len(self._waiting) < self._callers:
            self._changed = asyncio.Event()  # a used one belongs to the event loop that waited for it
            await self._changed.wait()
        seen = len(self._waiting) if self._callers else 0
        while seen < len(self._waiting) < self._most_rows:
            seen = len(self._waiting)
            await asyncio.sleep(_GATHER_SECONDS)

    async def _run(self) -> None:
        rows = self._running
        try:
            await asyncio.to_thread(_decode, self._network, rows, self._stop_ids(), self._half_precision)
        except Exception as error:  # noqa: BLE001 - the boundary: it fails the calls of this batch, no more
            traceback.clear_frames(error.__traceback__)  # they hold the tensors of the failed batch
            what = f"{self.model.name} failed on a batch of {len(rows)} ({type(error).__name__}: {error})"
            _fail(rows, f"{what}: if memory ran out, lower --concurrency", error)
        for row in rows:
            if not row.finished.done():
                row.finished.set_result(None)

    def _give_up(self) -> None:
        """Fail every call; a batch that runs ends with its next token, as nobody waits for it."""
        _fail([*self._waiting, *self._running], "the engine was closed before the call was done")
        self._waiting = []


async def open_engine(settings: Settings) -> TransformersEngine:
    """An engine for `settings.model`: a Hugging Face folder, an id of its hub, or a .gguf file.

    It runs in bfloat16 on a CUDA device if there is one, else in float32 on the CPU. Raises
    `SettingsError` for a model or adapter that cannot be loaded, and without a chat template.
    """
    if settings.model is None:
        raise SettingsError("no model is named: name a Hugging Face folder or id with --model")
    adapter = adapter_of(settings, "transformers")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    model, tokenizer = await asyncio.to_thread(_load, settings.model)
    if adapter:
        model = (await asyncio.to_thread(with_peft, model, adapter)).get_base_model()
    name, most_rows = name_with(settings.model, adapter), settings.concurrency or _MOST_ROWS
    return TransformersEngine(
        model, tokenizer, name=name, window_tokens=settings.window_tokens, most_rows=most_rows
    )


def chat_ids(tokenizer: PreTrainedTokenizerBase, messages: Iterable[Message]) -> list[int]:
    """The token ids of a chat up to where the assistant's turn begins. Raises jinja2's `TemplateError`."""
    chat = [asdict(message) for message in messages]
    rendered: Any = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_dict=False, tokenizer_kwargs={"verbose": False}
    )
    return list(rendered)


def _load(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    file = Path(name) if name.endswith(".gguf") else None
    place, options = (str(file.parent), {"gguf_file": file.name}) if file else (name, {})
    try:
        if file and not file.is_file():  # its folder would else be looked for on the hub, at length
            raise FileNotFoundError("there is no such file")
        tokenizer: Any = AutoTokenizer.from_pretrained(place, **options)
        model: Any = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, **options)
        return model.to(device), tokenizer
    except Exception as error:  # a bad file meets the errors of half a dozen libraries
        raise SettingsError(
            f"the model {name} cannot be loaded ({type(error).__name__}: {error}): name a folder with "
            "config.json, tokenizer and weights, or an id of the Hugging Face hub while it is in reach"
        ) from error


def _window(model: PreTrainedModel) -> int:
    known: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min(known or _MOST_WINDOW_TOKENS, _MOST_WINDOW_TOKENS)


def _next_batch(waiting: Sequence[_Row], most_rows: int) -> tuple[list[_Row], list[_Row]]:
    """The call that waits longest with those of about its length, and the rest; no cancelled ones.

    Rows are padded to the longest prompt of their batch, so that a far shorter one would cost as much.
    """
    rows = [row for row in waiting if not row.finished.done()]
    lengths = [sorted((len(row.prompt_ids), len(rows[0].prompt_ids))) for row in rows]
    alike = [row for row, (short, long) in zip(rows, lengths, strict=True)
             if long <= max(2 * short, _SHORT_PROMPT_TOKENS)]  # fmt: skip
    batch = alike[:most_rows]
    return batch, [row for row in rows if row not in batch]


def _fail(rows: Iterable[_Row], reason: str, cause: BaseException | None = None) -> None:
    for row in rows:
        if not row.finished.done():
            failure = EngineError(reason)
            failure.__cause__ = cause
            row.finished.set_exception(failure)


class _Draws(NamedTuple):
    """How each row of a batch draws its tokens."""

    temperature: torch.Tensor  # (sequences, 1), 1 where greedy
    greedy: torch.Tensor  # (sequences,)
    top_p: torch.Tensor  # (sequences, 1), above 1 where nothing is cut
    uniforms: torch.Tensor  # (sequences, tokens), a number in [0, 1) for each token

    @classmethod
    def of(cls, samplings: Sequence[Sampling], device: torch.device) -> _Draws:
        # Each row has its own generator and draws on the CPU, all at once: its numbers depend on
        # its seed alone, not on the rows beside it, nor on the device.
        uniforms = torch.zeros(len(samplings), max(it.max_tokens for it in samplings), dtype=torch.float64)
        for row, sampling in zip(uniforms, samplings, strict=True):
            generator = torch.Generator()
            generator.seed() if sampling.seed is None else generator.manual_seed(sampling.seed % 2**63)
            row[: sampling.max_tokens] = torch.rand(
                sampling.max_tokens, generator=generator, dtype=torch.float64
            )
        column = partial(torch.tensor, device=device, dtype=torch.float32)
        return cls(
            temperature=column([[it.temperature or 1.0] for it in samplings]),
            greedy=column([it.temperature for it in samplings]) == 0,
            top_p=column([[it.top_p if it.top_p < 1 else 2.0] for it in samplings]),
            uniforms=uniforms.to(device),
        )


def _decode(
    model: PreTrainedModel, rows: Sequence[_Row], stop_ids: frozenset[int], half_precision: bool = False
) -> None:
    """Sample all rows to their ends, as one batch. Runs in a thread."""
    was_training = model.training
    model.train(False)  # training mode may drop units out, and has no cache under gradient checkpointing
    precision = torch.autocast(model.device.type, torch.bfloat16, enabled=half_precision)
    try:
        with torch.no_grad(), precision:  # inference_mode could leave tensors that refuse training
            _decode_batch(model, rows, stop_ids)
    finally:
        model.train(was_training)


def _decode_batch(model: PreTrainedModel, rows: Sequence[_Row], stop_ids: frozenset[int]) -> None:
    draws = _Draws.of([row.sampling for row in rows], model.device)
    rows, draws, mask, cache = _read_beginnings(model, rows, draws)
    read = mask.shape[1]
    input_ids, tail = _left_padded([row.prompt_ids[int(count) :] for row, count in
                                    zip(rows, mask.sum(1).tolist(), strict=True)], model.device)  # fmt: skip
    steps, width = draws.uniforms.shape[1], read + input_ids.shape[1]
    mask = torch.cat([mask, tail, tail.new_ones(len(rows), steps)], dim=1)  # those to come included
    positions = (mask.cumsum(1) - 1).clamp(min=0)[:, read:width]  # (sequences, tokens)
    for step in range(steps):
        output = model(
            input_ids=input_ids,
            attention_mask=mask[:, : width + step],
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        token_ids, logprobs = _sample(output.logits[:, -1], draws, step)
        _append(rows, token_ids.tolist(), logprobs.tolist())
        live = [index for index, row in enumerate(rows) if not _ended(row, stop_ids)]
        if not live:
            return
        input_ids, positions = token_ids[:, None], positions[:, -1:] + 1  # (sequences, 1)
        if len(live) < len(rows):  # at once, as every step copies the whole cache anyway
            kept = torch.tensor(live, device=model.device)
            cache.reorder_cache(kept)  # the one selection of rows that every kind of cache has
            input_ids, positions, mask = input_ids[kept], positions[kept], mask[kept]
            draws = _Draws(*(part[kept] for part in draws))
            rows = [rows[index] for index in live]


def _read_beginnings(
    model: PreTrainedModel, rows: Sequence[_Row], draws: _Draws
) -> tuple[Sequence[_Row], _Draws, torch.Tensor, Any]:
    """Read what several prompts begin with, each beginning once.

    Returns the rows and draws, family after family; which places of the cache are a row's own
    `(sequences, tokens)`, their sum being how much of its prompt is read; and the cache, with an entry
    for each row. Where no two prompts begin alike nothing is read, and the cache is None.
    """
    families = shared_beginnings([row.prompt_ids for row in rows])
    if len(families) == len(rows) or not all(shared for shared, _ in families):
        return rows, draws, torch.ones(len(rows), 0, dtype=torch.long, device=model.device), None
    order = torch.tensor([index for _, members in families for index in members], device=model.device)
    family = [number for number, (_, members) in enumerate(families) for _ in members]
    ids, mask = _left_padded(
        [rows[members[0]].prompt_ids[:shared] for shared, members in families], model.device
    )
    cache = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
    ).past_key_values
    of_rows = torch.tensor(family, device=model.device)
    cache.reorder_cache(of_rows)  # a row's beginning is its family's
    ordered = [rows[index] for index in order.tolist()]
    return ordered, _Draws(*(part[order] for part in draws)), mask[of_rows], cache


def _left_padded(ids: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids `(sequences, tokens)`, all ending in the last place, and a mask of what is no padding."""
    width = max(map(len, ids))
    padded = [[0] * (width - len(row)) + list(row) for row in ids]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in ids]
    return torch.tensor(padded, device=device), torch.tensor(mask, device=device)


def _append(rows: Sequence[_Row], token_ids: list[int], logprobs: list[float]) -> None:
    for row, token_id, logprob in zip(rows, token_ids, logprobs, strict=True):
        if math.isnan(logprob):
            raise ArithmeticError("the logits are not numbers, the weights may be broken")
        row.completion_ids.append(token_id)
        row.logprobs.append(logprob)


def _ended(row: _Row, stop_ids: frozenset[int]) -> bool:
    # The state of a future may be read from any thread; a row that nobody waits for has ended.
    full = len(row.completion_ids) == row.sampling.max_tokens
    return full or row.completion_ids[-1] in stop_ids or row.finished.done()


def _sample(logits: torch.Tensor, draws: _Draws, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each row and its log-probability before `top_p`, both `(sequences,)`.

    `logits` are `(sequences, vocabulary)`. A token is where the row's uniform number lies in the
    cumulative distribution, which follows the order of the vocabulary: in that of the
    probabilities, rounding would make tokens that are nearly as likely change places.
    """
    logprobs = torch.log_softmax(logits.float() / draws.temperature, dim=-1)  # (sequences, vocabulary)
    cumulative = _nucleus(logprobs.double().exp(), draws.top_p).cumsum(-1)
    targets = draws.uniforms[:, step, None] * cumulative[:, -1:]  # (sequences, 1)
    drawn = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    drawn = drawn.clamp(max=logits.shape[-1] - 1)  # only logits that are not numbers lead past the end
    token_ids = torch.where(draws.greedy, logits.argmax(-1), drawn)
    return token_ids, logprobs.gather(-1, token_ids[:, None])[:, 0]


def _nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The probabilities, zero but for each row's fewest tokens that together reach `top_p`."""
    if bool((top_p > 1).all()):
        return probabilities
    ordered, order = probabilities.sort(-1, descending=True)  # (sequences, vocabulary)
    before = ordered.cumsum(-1) - ordered
    before[:, 0] = -1.0  # the likeliest token stays, however small top_p is
    return probabilities * torch.zeros_like(probabilities).scatter(-1, order, (before < top_p).double())
