"""Turn a chat into a read: tell the problem from the document by the shape of the chat, never by its words.

The request is what the user said last: the last turns in a row. A text of it (a turn, or a content part) is
short if it fits the problem's budget. A request that is short as a whole is the problem. Beside long texts,
the only short one is: no document can have written it. One long text alone is divided by tags only: if the
first and the last tag in it are a pair, the problem is what stands around them. All else is the document.

Where this leaves a doubt, the client is asked, by an error that names `memagent.problem`: a document may hold
questions, orders and labels of its own, in any language, so none of them counts.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

from memagent.documents.tokens import MAX_CHARACTERS_PER_TOKEN, is_within
from memagent.reading.workflows import choose_workflow
from memagent.server.asking import around_tags, take_end
from memagent.server.documents import Content, StoredContent, clean_name
from memagent.server.errors import ApiError, storing
from memagent.server.schemas import ChatOptions, ChatRequest, FilePart, ReadOptions, Turn
from memagent.server.store import Store
from memagent.settings import DEFAULT_WINDOW_TOKENS, ReadSettings
from memagent.storage import file_digest
from memagent.types import Model, TokenCounter
from memagent.version import __version__

_LABELS = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}
_PIECE_CHARACTERS = 32 * 1024  # counting holds the GIL: a long text must not hold it for long
_MIN_TOP_P = 1e-9
_BEGINNING = "\n\nThe answer begins: "
_DIVIDING = ("problem", "problem_at", "document")  # of the options: what tells the problem from the document
_TURN_TOKENS = 8  # for what a chat template puts around a message


def prepare(
    chat: ChatRequest, owner: str, model: Model, settings: ReadSettings, store: Store
) -> tuple[str, dict[str, Any], list[tuple[str, Content]]]:
    """Prepare a read for `Jobs.begin`: its key, what is asked, and the documents.

    The same chat has the same key. Raises `ApiError` for what a read cannot provide, and `SettingsError`.
    """
    _check_readable(chat)
    options = _options(chat, model)
    settings = options.over(settings)
    _, workflow = choose_workflow(settings, model.trained)
    budget = workflow.budgets(settings, model).problem_tokens
    division = _divide(chat, budget, model)
    documents: list[tuple[str, Content]] = list(division.texts)
    documents += [_file(file, owner, store) for turn in chat.messages for file in turn.files]
    if not documents:
        message = "there is nothing to read besides the problem: give a document as a file"
        raise ApiError(400, f"{message}, an earlier message or memagent.document", "no_document", "messages")
    with storing():
        fingerprint = _fingerprint(documents)
    names = [name for name, _ in documents]  # they decide how bytes are read
    key = key_of(division.problem, fingerprint, names, settings, model)
    request = {"problem": division.problem, "memory": "", "options": options.model_dump(exclude_none=True)}
    return key, request, documents


def key_of(problem: str, fingerprint: str, names: Sequence[str], settings: ReadSettings, model: Model) -> str:
    """The key of a read: equal for the same question on the same documents, by the same model and prompts.

    A server that comes later may have others, or another judge. Raises `SettingsError` as a read does.
    """
    name, workflow = choose_workflow(settings, model.trained)
    asked = problem, fingerprint, names, settings.model_dump(mode="json"), name
    by = model.name, model.judges, workflow.prompts.fingerprint
    return hashlib.sha256(json.dumps([__version__, *asked, *by]).encode()).hexdigest()


def _fingerprint(documents: Sequence[tuple[str, Content]]) -> str:
    """The fingerprint of all documents together. See `Document.fingerprint`."""
    digest = hashlib.sha256()
    for _, content in documents:
        if isinstance(content, StoredContent):
            digest.update(file_digest(content.path))
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
    texts += [json.dumps(value) for value in (chat.tools, chat.response_format) if value]
    if sum(map(len, texts)) > MAX_CHARACTERS_PER_TOKEN * window:
        return False
    for text in texts:
        for start in range(0, len(text), _PIECE_CHARACTERS):
            left -= model.count_tokens(text[start : start + _PIECE_CHARACTERS])
            if left < 0:
                return False
    return True


def _check_readable(chat: ChatRequest) -> None:
    """Raise `ApiError` for a chat that asks for what a read cannot provide."""
    refused = {**chat.beyond_text, "tool_choice": chat.tool_choice not in (None, "none", "auto")}
    for name, is_refused in refused.items():
        if is_refused:
            what = "parts other than text and files" if name == "messages" else f"this {name}"
            message = f"the chat does not fit the model's window and is read in chunks, where {what} cannot"
            raise ApiError(400, f"{message} be used: leave it out, or shorten the chat", "not_readable", name)


def _options(chat: ChatRequest, model: Model) -> ReadOptions:
    """What a chat asks for: in OpenAI's words, and in `memagent`, which takes precedence."""
    top_p = _MIN_TOP_P if chat.top_p == 0 else chat.top_p  # OpenAI allows 0: the likeliest token
    values: dict[str, Any] = {"temperature": chat.temperature, "top_p": top_p, "seed": chat.seed}
    if chat.reply_tokens:
        window = model.window_tokens or DEFAULT_WINDOW_TOKENS
        values["answer_tokens"] = min(chat.reply_tokens, max(16, window // 4))
    options = (chat.memagent or ChatOptions()).model_dump(exclude=set(_DIVIDING), exclude_none=True)
    return ReadOptions(**(values | options))


def _divide(chat: ChatRequest, budget_tokens: int, model: Model) -> Division:
    """Divide the chat into problem and document: as it says, or else by the rules of `divide`.

    How the reply begins stands at the end of the problem, by its last words where it is long.
    """
    options, count_tokens = chat.memagent or ChatOptions(), model.count_tokens
    problem, document, beginning = options.problem, options.document, chat.beginning.strip()
    if beginning:
        beginning = _BEGINNING + take_end(beginning, budget_tokens // 4, count_tokens, at_end=True)
        budget_tokens -= count_tokens(beginning) + 1  # tokens may differ where texts are joined
    texts: tuple[tuple[str, str], ...]
    if problem is None:
        division = divide(chat.turns, budget_tokens, count_tokens, options.problem_at)
        problem, texts = division.problem, division.texts
    else:
        turns = [(turn.role, text) for turn in chat.turns if (text := "\n\n".join(turn.texts)).strip()]
        whole = "\n\n".join(_label(role, text) for role, text in turns)
        texts = (("conversation", whole),) if turns else ()
        if len(turns) == 1:
            texts = (("message", turns[0][1]),)
    if document is not None:
        texts = (("document", document),)
    return Division(problem + beginning, texts)


def _file(file: FilePart, owner: str, store: Store) -> tuple[str, Content]:
    if file.file_id is not None:
        stored = store.file(owner, file.file_id)
        return stored.name, StoredContent(store.path_of(stored))
    if file.file_data is None:
        raise ApiError(400, "a file part needs a file_id or file_data", "no_file", "messages")
    try:
        return clean_name(file.filename), _decode(file.file_data)
    except ValueError as error:
        message = "file_data is neither a data URL nor base64"
        raise ApiError(400, message, "invalid_file", "messages") from error


def _decode(data: str) -> bytes:
    """Decode a data URL (RFC 2397) or plain base64. Raises `ValueError` for anything else."""
    kind, comma, content = data.partition(",")
    if not (comma and kind[:5].lower() == "data:"):
        return base64.b64decode(data, validate=True)
    plain = unquote_to_bytes(content)
    return base64.b64decode(plain, validate=True) if kind.lower().endswith(";base64") else plain


@dataclass(frozen=True, slots=True)
class Division:
    """A problem, and the texts of the document with their names."""

    problem: str
    texts: tuple[tuple[str, str], ...] = ()


def divide(
    turns: Sequence[Turn],
    budget_tokens: int,
    count_tokens: TokenCounter,
    at: Literal["start", "end"] | None = None,
) -> Division:
    """Divide a chat, by the rules above.

    `at` is where the client's own words stand in a long text, if it says so: as much of that end as fits the
    budget is the problem. Raises `ApiError` if nothing is asked, or if it is unclear what. Blocks.
    """

    def is_short(*texts: str) -> bool:
        return is_within("\n\n".join(filter(None, texts)), budget_tokens, count_tokens)

    request = _find_request(turns)
    texts = [text for number in request for text in turns[number].texts if text.strip()]
    short, long = list[str](), list[str]()
    for text in texts:
        (short if is_short(text) else long).append(text)
    if not long and is_short(*short):
        problem = "\n\n".join(short)
    elif long and len(short) == 1:
        (problem,) = short
    elif len(texts) == 1 and at:
        problem = take_end(long[0], budget_tokens, count_tokens, at_end=at == "end")
    elif len(texts) == 1 and (around := around_tags(long[0], budget_tokens, count_tokens)):
        problem = around
    else:
        raise _unclear(len(short), budget_tokens)
    instructions, others = list[str](), list[str]()
    for number, turn in enumerate(turns):
        text = "\n\n".join(turn.texts).strip()
        if number in request or not text:
            continue
        instructs = turn.role in ("system", "developer") and number < request[0]
        if instructs and is_short(*instructions, text, problem):
            instructions.append(text)
        else:
            others.append(_label(turn.role, text))
    conversation = [("conversation", "\n\n".join(others))] if others else []
    names = ("message",) if len(long) == 1 else tuple(f"message {n}" for n in range(1, len(long) + 1))
    problem = "\n\n".join([*instructions, problem])
    return Division(problem, (*conversation, *zip(names, long, strict=True)))


def _label(role: str, text: str) -> str:
    return f"{_LABELS.get(role, 'Tool')}: {text}"


def _find_request(turns: Sequence[Turn]) -> Sequence[int]:
    """The indices of the user's last turns in a row, the last of which has a text.

    Where no user says a word, as beside a file, a system message does. Raises `ApiError` without any.
    """
    speaking = [number for number, turn in enumerate(turns) if any(text.strip() for text in turn.texts)]
    for roles in (("user",), ("system", "developer")):
        if last := [number for number in speaking if turns[number].role in roles][-1:]:
            first = last[0]
            while first and turns[first - 1].role in roles:
                first -= 1
            return range(first, last[0] + 1)
    raise ApiError(
        400, "no message asks anything: send one of the user's with a text", "no_problem", "messages"
    )


def _unclear(candidates: int, budget_tokens: int) -> ApiError:
    """The error that asks the client for the problem."""
    why = f"the last message is longer than a problem may be, {budget_tokens} tokens"
    if candidates > 1:
        why = f"{candidates} of its last texts are short enough to be the problem"
    how = 'as memagent.problem ({"memagent": {"problem": "..."}} in the request), or as a message of its own'
    return ApiError(
        400,
        f"what the chat asks cannot be told from the document ({why}): give the problem {how}",
        "unclear_problem",
        "memagent.problem",
    )
