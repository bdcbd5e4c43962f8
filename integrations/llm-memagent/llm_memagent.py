"""A plug-in of llm: the model `memagent` has `memagent serve` read fragments and attachments of any length.

It leaves out the asynchronous model, tools and schemas: a read has none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import httpx2
import llm
from llm.parts import StreamEvent, TextPart
from pydantic import Field

URL = "http://127.0.0.1:8321/v1"
"""Where `memagent serve` listens, unless LLM_MEMAGENT_URL says otherwise."""

_PATIENCE = httpx2.Timeout(60, write=600)  # the server sends something every 10 seconds
_OFFICE = "application/vnd.openxmlformats-officedocument"


@llm.hookimpl
def register_models(register: Any) -> None:
    """Add the model."""
    register(MemAgent())


class MemAgent(llm.Model):
    """Whatever model `memagent serve` has, with documents of any length."""

    model_id = "memagent"
    can_stream = True
    attachment_types = frozenset(
        {
            "application/epub+zip",
            "application/json",
            "application/pdf",
            "application/rtf",
            f"{_OFFICE}.presentationml.presentation",
            f"{_OFFICE}.spreadsheetml.sheet",
            f"{_OFFICE}.wordprocessingml.document",
            "text/csv",
            "text/html",
            "text/markdown",
            "text/plain",
        }
    )

    class Options(llm.Options):
        """What `-o` sets; the server's flags decide the rest."""

        cite: bool = Field(default=False, description="Print below the answer where the documents say it")
        workflow: str | None = Field(default=None, description="How to read, such as notes or gated")

    def execute(  # the signature is llm's
        self,
        prompt: Any,
        stream: bool,  # noqa: ARG002
        response: Any,
        conversation: Any = None,  # noqa: ARG002
    ) -> Iterator[str | StreamEvent]:
        """Yield the progress as reasoning, then the answer. Raises `llm.ModelError`."""
        url = os.environ.get("LLM_MEMAGENT_URL", URL).rstrip("/") + "/"
        key = llm.get_key(key_alias="memagent", env_var="LLM_MEMAGENT_KEY") or "none"
        try:
            with (
                httpx2.Client(
                    base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=_PATIENCE
                ) as server,
                ExitStack() as uploads,
            ):
                chat = _chat(prompt, [_upload(*file, server, uploads) for file in _files(prompt)])
                yield from _answer(server, chat, prompt.options.cite, response)
        except httpx2.ConnectError as error:
            raise llm.ModelError(
                f"no server at {url}: start memagent serve, or set LLM_MEMAGENT_URL"
            ) from error
        except httpx2.HTTPError as error:
            raise llm.ModelError(f"the server at {url} broke off: {error!r}; ask again") from error


def _files(prompt: Any) -> Iterator[tuple[str, bytes]]:
    """The fragments and attachments with their names."""
    for fragment in prompt.fragments:
        yield _name(getattr(fragment, "source", None)), fragment.encode("utf-8", "replace")
    for attachment in prompt.attachments:
        yield _name(attachment.path or attachment.url), attachment.content_bytes()


def _name(source: str | None) -> str:
    return (source or "").rstrip("/").rsplit("/", 1)[-1].strip("-") or "document"


def _chat(prompt: Any, ids: Sequence[str]) -> dict[str, Any]:
    """The request: earlier turns, then the files with the question."""
    texts = [
        (message.role, "".join(p.text for p in message.parts if isinstance(p, TextPart)))
        for message in prompt.messages
    ]
    turns: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in texts if text]
    if ids:
        asked = [{"type": "text", "text": prompt._prompt or ""}]
        files = [{"type": "file", "file": {"file_id": item}} for item in ids]
        if turns and turns[-1]["role"] == "user":
            turns.pop()  # its text has the fragments in it
        turns.append({"role": "user", "content": [*files, *asked]})
    chat: dict[str, Any] = {"model": "memagent", "messages": turns, "stream": True}
    chat["stream_options"] = {"include_usage": True}
    if ids or prompt.options.cite or prompt.options.workflow:
        options = {"cite": prompt.options.cite, "workflow": prompt.options.workflow}
        chat["memagent"] = {name: value for name, value in options.items() if value}
    return chat


def _upload(name: str, content: bytes, server: httpx2.Client, uploads: ExitStack) -> str:
    """Upload a document until `uploads` closes; returns its id."""
    reply = server.post("files", data={"purpose": "user_data"}, files={"file": (name, content)})
    _check(reply)
    file_id: str = reply.json()["id"]
    uploads.callback(server.delete, f"files/{file_id}")
    return file_id


def _answer(
    server: httpx2.Client, chat: Mapping[str, Any], cite: bool, response: Any
) -> Iterator[str | StreamEvent]:
    statements: list[dict[str, Any]] = []
    with server.stream("POST", "chat/completions", json=chat) as reply:
        if not reply.is_success:
            reply.read()
        _check(reply)
        for event in _events(reply):
            if error := event.get("error"):
                raise llm.ModelError(error["message"])
            for choice in event["choices"]:
                delta = choice["delta"]
                if thought := delta.get("reasoning_content"):
                    yield StreamEvent(type="reasoning", chunk=thought)
                if delta.get("content"):
                    yield delta["content"]
                statements += delta.get("memagent", {}).get("statements", [])
            if usage := event.get("usage"):
                response.set_usage(input=usage["prompt_tokens"], output=usage["completion_tokens"])
    response.response_json = {"statements": statements}
    if cite:
        yield _sources(statements)


def _events(reply: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in reply.iter_lines():
        if line.startswith("data:") and (data := line.removeprefix("data:").strip()) != "[DONE]":
            yield json.loads(data)


def _check(reply: httpx2.Response) -> None:
    if not reply.is_success:
        try:
            message = reply.json()["error"]["message"]
        except (ValueError, LookupError, TypeError):
            message = reply.text[:200]
        raise llm.ModelError(f"memagent serve replied with status {reply.status_code}: {message}")


def _sources(statements: Sequence[Mapping[str, Any]]) -> str:
    """The sources as lines below the answer, each once."""
    lines = dict.fromkeys(line for statement in statements for line in _lines(statement))
    return "".join(["\n", *lines]).rstrip("\n") if lines else ""


def _lines(statement: Mapping[str, Any]) -> list[str]:
    if source := statement["source"]:
        return [_source(source)]
    return [_source(item, "nearest passage, other words: ") for item in statement.get("nearest", ())]


def _source(source: Mapping[str, Any], kind: str = "") -> str:
    page = "" if source["page"] is None else f", page {source['page']}"
    return (
        f"\n{kind}{source['file']}{page}, characters {source['start']}-{source['end']}: {source['excerpt']}"
    )
