"""Requests to llama.cpp's server in this process other than chat completions.

It counts tokens, and caches the beginning that most prompts of a read share.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from memagent.engines.refusals import HttpReply, read_refusal
from memagent.errors import ContextOverflowError, EngineError
from memagent.types import Message


class Loopback:
    """Calls to the server's own API, over one connection that threads take turns to use."""

    def __init__(self, address: str, key: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(address).netloc)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._lock = threading.RLock()
        self._closed = False
        self._last: list[int] | None = None  # the prompt that the cache holds, if known

    def count(self, text: str) -> int:
        """Count the tokens of a text, taking special tokens in it as plain text. Raises `EngineError`."""
        whole = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
        return len(self._tokens({"content": whole, "add_special": False, "parse_special": False}))

    def wait_until_it_works(self) -> None:
        """Wait until the server's loop has begun, some time after its first replies. Raises `EngineError`."""
        self._post("/completion", {"prompt": "a", "n_predict": 0, "cache_prompt": False})

    def keep_beginning(self, messages: Sequence[Message], batch_tokens: int) -> None:
        """Leave in the cache the whole batches that this prompt shares with the last, and nothing else.

        Call it before each completion that uses the cache, for a server with one slot. llama.cpp computes a
        prompt batch by batch, so a prompt whose first batches are cached gets exactly the numbers that it
        would get from an empty cache. Reusing anything more would shift the later batches, and with them the
        rounding. Raises `ContextOverflowError` if even the beginning exceeds the window, else `EngineError`.
        """
        with self._lock:  # the thread of a cancelled call may still be here: let it end first
            prompt = self._post("/apply-template", {"messages": [asdict(message) for message in messages]})
            ids = self._tokens({"content": prompt["prompt"], "add_special": True, "parse_special": True})
            known, last = self._last is not None, self._last or []
            shorter = min(len(last), len(ids))
            common = next((place for place in range(shorter) if last[place] != ids[place]), shorter)
            kept = min(common, len(ids) - 1) // batch_tokens * batch_tokens
            self._last = ids
            another = int(ids[kept] == 0)  # differs from the prompt, which ends the shared beginning here
            beginning = [*ids[:kept], another]
            self._post("/completion", {"prompt": beginning, "n_predict": 0, "cache_prompt": known})

    def forget(self) -> None:
        """Note that the cache now holds something else, which the next prompt must not build on."""
        self._last = None

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._closed = True
            self._connection.close()

    def _tokens(self, text: Mapping[str, Any]) -> list[int]:
        found: list[int] = self._post("/tokenize", text)["tokens"]
        return found

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed: open another")
            try:
                try:
                    return self._reply(path, json.dumps(body))
                except (http.client.HTTPException, OSError):  # the server closes connections idle for 5 s
                    self._connection.close()
                    return self._reply(path, json.dumps(body))
            except (http.client.HTTPException, OSError) as error:
                self._connection.close()
                raise EngineError(f"llama.cpp's server in this process does not reply: {error}") from error

    def _reply(self, path: str, body: str) -> Any:
        self._connection.request("POST", path, body, self._headers)
        reply = self._connection.getresponse()
        content = reply.read()
        if reply.status != http.client.OK:
            refusal = read_refusal(HttpReply(reply.status, content))
            if refusal.is_overflow:
                raise ContextOverflowError(refusal.message)
            raise EngineError(f"llama.cpp refused {path} (HTTP {reply.status}): {content[:200]!r}")
        return json.loads(content)
