"""Turn a chat into a read: its problem, document and settings. Blocks."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes

from memagent import __version__
from memagent.documents.opening import Document, text_document
from memagent.documents.tokens import MOST_CHARACTERS_PER_TOKEN
from memagent.reading.workflows import chosen_workflow
from memagent.server.bodies import ChatOptions, ChatRequest, FilePart
from memagent.server.division import Division, divide, labelled
from memagent.server.documents import joined, opened
from memagent.server.errors import ApiError, storing
from memagent.server.store import Store, shown_name
from memagent.settings import DEFAULT_WINDOW_TOKENS, ReadSettings
from memagent.types import Model

_PIECE_CHARACTERS = 32 * 1024  # counting holds the GIL: a long text must not hold it for long
_LEAST_TOP_P = 1e-9
_TURN_TOKENS = 8  # for what a chat template puts around a message


@dataclass(frozen=True, slots=True)
class Prepared:
    """A chat as a read; the same chat has the same `digest`."""

    problem: str
    document: Document
    settings: ReadSettings
    digest: str


def prepare(
    chat: ChatRequest, owner: str, model: Model, settings: ReadSettings, store: Store, folder: Path
) -> Prepared:
    """Prepare a read; files that came with the chat are written to `folder`.

    Raises `ApiError` for what a read cannot provide, and `SettingsError` or `DocumentError`.
    """
    _check_readable(chat)
    chosen = _settings(chat, model, settings)
    _, workflow = chosen_workflow(chosen, model.trained)
    budget = workflow.budgets(chosen, model).problem_tokens
    division = _division(chat, budget, model)
    documents = [text_document(text, name) for name, text in division.texts]
    for number, file in enumerate(it for turn in chat.messages for it in turn.files):
        documents.append(_file(file, owner, store, folder / str(number)))
    if not documents:
        raise ApiError(
            400,
            "there is nothing to read besides the problem: give a document as a file, an earlier message or "
            "memagent.document",
            "no_document",
            "messages",
        )
    document = joined(documents)
    digest = hashlib.sha256(
        json.dumps(
            [__version__, owner, division.problem, document.fingerprint, chosen.model_dump(), model.name]
        ).encode()
    )
    return Prepared(division.problem, document, chosen, digest.hexdigest())


def fits(chat: ChatRequest, model: Model, answer_tokens: int) -> bool:
    """Whether a chat and its reply fit the model's window, of which the reply gets a quarter at most.

    Chats with `memagent` options or files are always read.
    """
    if chat.memagent is not None or any(turn.files for turn in chat.messages):
        return False
    window = model.window_tokens or DEFAULT_WINDOW_TOKENS
    left = window - min(chat.most_tokens or answer_tokens, window // 4) - _TURN_TOKENS * len(chat.messages)
    texts = [text for turn in chat.messages for text in turn.texts]
    texts += [json.dumps(it) for it in (chat.tools, chat.response_format) if it]
    if sum(map(len, texts)) > MOST_CHARACTERS_PER_TOKEN * window:
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


def _settings(chat: ChatRequest, model: Model, settings: ReadSettings) -> ReadSettings:
    """The server's settings with what the chat asks for."""
    top_p = _LEAST_TOP_P if chat.top_p == 0 else chat.top_p  # OpenAI allows 0: the likeliest token
    asked = {"temperature": chat.temperature, "top_p": top_p, "seed": chat.seed}
    values = {name: value for name, value in asked.items() if value is not None}
    if chat.most_tokens:
        window = model.window_tokens or DEFAULT_WINDOW_TOKENS
        values["answer_tokens"] = min(chat.most_tokens, max(16, window // 4))
    return (chat.memagent or ChatOptions()).over(settings, **values)


def _division(chat: ChatRequest, budget_tokens: int, model: Model) -> Division:
    """Divide the chat into problem and document: as it says, or else by the rule of `divide`."""
    options = chat.memagent or ChatOptions()
    if options.problem is None:
        found = divide(chat.messages, budget_tokens, model.count_tokens)
        if options.document is None:
            return found
        return Division(found.problem, (("document", options.document),))
    if options.document is not None:
        return Division(options.problem, (("document", options.document),))
    said = [(turn.role, text) for turn in chat.messages if (text := "\n\n".join(turn.texts)).strip()]
    if len(said) == 1:
        return Division(options.problem, (("message", said[0][1]),))
    whole = "\n\n".join(labelled(role, text) for role, text in said)
    return Division(options.problem, (("conversation", whole),) if said else ())


def _file(file: FilePart, owner: str, store: Store, folder: Path) -> Document:
    if file.file_id is not None:
        stored = store.file(owner, file.file_id)
        return opened(store.path_of(stored), stored.name)
    if file.file_data is None:
        raise ApiError(400, "a file part needs a file_id or file_data", "no_file", "messages")
    try:
        content = _bytes_of(file.file_data)
    except ValueError as error:
        raise ApiError(
            400, "file_data is neither a data URL nor base64", "invalid_file", "messages"
        ) from error
    name = shown_name(file.filename)
    path = folder / "content"
    with storing():
        folder.mkdir(mode=0o700)
        path.write_bytes(content)
    return opened(path, name)


def _bytes_of(data: str) -> bytes:
    """Decode a data URL (RFC 2397) or plain base64. Raises `ValueError` for anything else."""
    kind, comma, content = data.partition(",")
    if not (comma and kind[:5].lower() == "data:"):
        return base64.b64decode(data, validate=True)
    plain = unquote_to_bytes(content)
    return base64.b64decode(plain, validate=True) if kind.lower().endswith(";base64") else plain
