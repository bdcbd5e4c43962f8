"""Turn a chat into a read: its problem, document and settings. Blocks."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote_to_bytes

from memagent.documents.tokens import MAX_CHARACTERS_PER_TOKEN
from memagent.reading.workflows import choose_workflow
from memagent.server.asking import take_end
from memagent.server.division import Division, divide, label
from memagent.server.errors import ApiError, storing
from memagent.server.records import Content, StoredFile, clean_name
from memagent.server.schemas import ChatOptions, ChatRequest, FilePart, ReadOptions
from memagent.server.store import Store
from memagent.settings import DEFAULT_WINDOW_TOKENS, ReadSettings
from memagent.storage import file_digest
from memagent.types import Model
from memagent.version import __version__

_PIECE_CHARACTERS = 32 * 1024  # counting holds the GIL: a long text must not hold it for long
_MIN_TOP_P = 1e-9
_BEGUN = "\n\nThe answer begins: "
_TURN_TOKENS = 8  # for what a chat template puts around a message


@dataclass(frozen=True, slots=True)
class Prepared:
    """A chat as a read, for `Jobs.begin`; the same chat has the same key."""

    key: str
    request: Mapping[str, Any]
    documents: Sequence[tuple[str, Content]]
    settings: ReadSettings


def prepare(chat: ChatRequest, owner: str, model: Model, settings: ReadSettings, store: Store) -> Prepared:
    """Prepare a read. Raises `ApiError` for what a read cannot provide, and `SettingsError`."""
    _check_readable(chat)
    options = _options(chat, model)
    chosen = options.over(settings)
    _, workflow = choose_workflow(chosen, model.trained)
    budget = workflow.budgets(chosen, model).problem_tokens
    division = _division(chat, budget, model)
    documents: list[tuple[str, Content]] = list(division.texts)
    documents += [_file(file, owner, store) for turn in chat.messages for file in turn.files]
    if not documents:
        raise ApiError(
            400,
            "there is nothing to read besides the problem: give a document as a file, an earlier message or "
            "memagent.document",
            "no_document",
            "messages",
        )
    with storing():
        fingerprint = _fingerprint(documents, store)
    identity = [__version__, owner, division.problem, fingerprint, chosen.model_dump(), model.name]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    request = {"problem": division.problem, "memory": "", "options": options.model_dump(exclude_none=True)}
    return Prepared(key, request, documents, chosen)


def _fingerprint(documents: Sequence[tuple[str, Content]], store: Store) -> str:
    """The fingerprint that the documents have together. See `Document.fingerprint`."""
    digest = hashlib.sha256()
    for _, content in documents:
        if isinstance(content, StoredFile):
            digest.update(file_digest(store.path_of(content)))
        else:
            raw = content if isinstance(content, bytes) else str(content).encode()
            digest.update(hashlib.sha256(raw).digest())
    return digest.hexdigest()


def fits(chat: ChatRequest, model: Model, answer_tokens: int) -> bool:
    """Whether a chat and its reply fit the model's window, of which the reply gets a quarter at most.

    Chats with `memagent` options or files are always read.
    """
    if chat.memagent is not None or any(turn.files for turn in chat.messages):
        return False
    window = model.window_tokens or DEFAULT_WINDOW_TOKENS
    left = window - min(chat.reply_tokens or answer_tokens, window // 4) - _TURN_TOKENS * len(chat.messages)
    texts = [text for turn in chat.messages for text in turn.texts]
    texts += [json.dumps(it) for it in (chat.tools, chat.response_format) if it]
    if sum(map(len, texts)) > MAX_CHARACTERS_PER_TOKEN * window:
        return False
    for piece in _pieces(texts):
        left -= model.count_tokens(piece)
        if left < 0:
            return False
    return True


def _pieces(texts: list[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), _PIECE_CHARACTERS):
            yield text[start : start + _PIECE_CHARACTERS]


def _check_readable(chat: ChatRequest) -> None:
    """Raise `ApiError` for a chat that asks for what a read cannot provide."""
    refused = {**chat.beyond_text, "tool_choice": chat.tool_choice not in (None, "none", "auto")}
    for name, is_refused in refused.items():
        if is_refused:
            what = "parts other than text and files" if name == "messages" else f"this {name}"
            raise ApiError(
                400,
                f"the chat does not fit the model's window and is read in chunks, where {what} cannot be "
                "used: leave it out, or shorten the chat",
                "not_readable",
                name,
            )


def _options(chat: ChatRequest, model: Model) -> ReadOptions:
    """What a chat asks for: in OpenAI's words, and in `memagent`, which takes precedence."""
    top_p = _MIN_TOP_P if chat.top_p == 0 else chat.top_p  # OpenAI allows 0: the likeliest token
    asked: dict[str, Any] = {"temperature": chat.temperature, "top_p": top_p, "seed": chat.seed}
    if chat.reply_tokens:
        window = model.window_tokens or DEFAULT_WINDOW_TOKENS
        asked["answer_tokens"] = min(chat.reply_tokens, max(16, window // 4))
    options = (chat.memagent or ChatOptions()).model_dump(exclude={"problem", "document"}, exclude_none=True)
    return ReadOptions(**(asked | options))


def _division(chat: ChatRequest, budget_tokens: int, model: Model) -> Division:
    """Divide the chat into problem and document: as it says, or else by the rules of `divide`.

    How the reply begins is told at the end of the problem, by its last words where it is long.
    """
    begun = chat.beginning.strip()
    if begun:
        ends = take_end(begun, budget_tokens // 4, model.count_tokens, at_end=True)
        begun = _BEGUN + "".join(ends).strip()
        budget_tokens -= model.count_tokens(begun) + 1  # tokens may differ where texts are joined
    division = _divide(chat, budget_tokens, model)
    return replace(division, problem=division.problem + begun)


def _divide(chat: ChatRequest, budget_tokens: int, model: Model) -> Division:
    options = chat.memagent or ChatOptions()
    if options.problem is None:
        division = divide(chat.turns, budget_tokens, model.count_tokens)
        if options.document is None:
            return division
        return Division(division.problem, (("document", options.document),))
    if options.document is not None:
        return Division(options.problem, (("document", options.document),))
    said = [(turn.role, text) for turn in chat.turns if (text := "\n\n".join(turn.texts)).strip()]
    if len(said) == 1:
        return Division(options.problem, (("message", said[0][1]),))
    whole = "\n\n".join(label(role, text) for role, text in said)
    return Division(options.problem, (("conversation", whole),) if said else ())


def _file(file: FilePart, owner: str, store: Store) -> tuple[str, Content]:
    """The name and the content of a file of a chat. Raises `ApiError`."""
    if file.file_id is not None:
        stored = store.file(owner, file.file_id)
        return stored.name, stored
    if file.file_data is None:
        raise ApiError(400, "a file part needs a file_id or file_data", "no_file", "messages")
    try:
        return clean_name(file.filename), _decode(file.file_data)
    except ValueError as error:
        raise ApiError(
            400, "file_data is neither a data URL nor base64", "invalid_file", "messages"
        ) from error


def _decode(data: str) -> bytes:
    """Decode a data URL (RFC 2397) or plain base64. Raises `ValueError` for anything else."""
    kind, comma, content = data.partition(",")
    if not (comma and kind[:5].lower() == "data:"):
        return base64.b64decode(data, validate=True)
    plain = unquote_to_bytes(content)
    return base64.b64decode(plain, validate=True) if kind.lower().endswith(";base64") else plain
