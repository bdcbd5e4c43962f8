"""Read an endpoint's list of models, in the forms that different servers use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memagent.engines.endpoint import UnreachableError
from memagent.engines.refusals import HttpReply, brief, is_page
from memagent.engines.replies import about_a_page, parse_json
from memagent.errors import EngineError

_MOST_WINDOW_TOKENS = 2**31


def read_models(reply: HttpReply, url: str) -> dict[str, Mapping[str, Any]]:
    """The models by name. Raises `UnreachableError` for a web page, `EngineError` if it is not a list."""
    if is_page(reply.text):
        raise UnreachableError(about_a_page(url))
    sent = parse_json(reply, url)
    entries = sent.get("data") if isinstance(sent, dict) else sent  # some send the list alone
    listed = entries if isinstance(entries, list) else [None]
    models: dict[str, Mapping[str, Any]] = {
        it["id"]: it for it in listed if isinstance(it, dict) and isinstance(it.get("id"), str)
    }
    if listed and not models:
        raise EngineError(f"{url} did not list its models ({brief(reply.text)!r}): name one with `model`")
    return models


def window_of(entry: Mapping[str, Any]) -> int | None:
    """The window of a listed model in tokens; vLLM and SGLang call it `max_model_len`, others differ."""
    meta = entry.get("meta")
    told = [entry.get("max_model_len"), entry.get("context_length")]
    told += [meta.get("n_ctx")] if isinstance(meta, dict) else []
    return next((it for it in told if type(it) is int and 0 < it < _MOST_WINDOW_TOKENS), None)
