"""Token ids of texts and chats, from a Hugging Face tokenizer.

Fast tokenizers are called directly: transformers' wrapper costs more than a short prompt does, and changes
the tokenizer's state, which is not safe among threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from memagent.types import Message, TokenCounter

_REMEMBERED = 8  # tokenizers


def token_counter(tokenizer: PreTrainedTokenizerBase) -> TokenCounter:
    """A counter of a text's tokens, without those that the tokenizer adds around it."""
    encode = _encoder(tokenizer)
    return lambda text: len(encode(text))


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The token ids of a text, without those that the tokenizer adds around it."""
    return _encoder(tokenizer)(text)


def chat_ids(
    tokenizer: PreTrainedTokenizerBase, messages: Iterable[Message], *, thinking: bool | None = None
) -> list[int]:
    """The token ids of a chat up to where the assistant's turn begins.

    `thinking` tells a chat template whether the model is to think before it replies; many take no notice.
    A special token that is spelled out in a message is treated as text: its spelling is cut in two, so that
    neither piece is a special token. Raises jinja2's `TemplateError`.
    """
    chat = [{"role": message.role, "content": message.content} for message in messages]
    text = "".join(message["content"] for message in chat)
    special, cut = _specials(tokenizer), ""
    if special and special.search(text):
        cut = next(sign for sign in map(chr, range(0xE000, 0xF900)) if sign not in text)
        for message in chat:
            message["content"] = special.sub(
                lambda match: match.group()[0] + cut + match.group()[1:], message["content"]
            )
    options: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
    whole = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **options))
    encode = _encoder(tokenizer)
    return [number for piece in (whole.split(cut) if cut else [whole]) for number in encode(piece)]


@lru_cache(maxsize=_REMEMBERED)
def _specials(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str] | None:
    """A pattern that finds special tokens in a text; None if the tokenizer has none."""
    names = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names))) if names else None


@lru_cache(maxsize=_REMEMBERED)
def _encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], list[int]]:
    if not getattr(tokenizer, "is_fast", False):
        return lambda text: list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return lambda text: list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
