"""Requests to llama.cpp's server in this process other than chat completions: it counts tokens."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from memagent.errors import EngineError


class Loopback:
    """Calls to the server's own API, over one connection that threads take turns to use."""

    def __init__(self, address: str, key: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(address).netloc)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._lock = threading.Lock()
        self._closed = False

    def count(self, text: str) -> int:
        """Count the tokens of a text, taking special tokens in it as plain text. Raises `EngineError`."""
        whole = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
        body = {"content": whole, "add_special": False, "parse_special": False}
        return len(self._post("/tokenize", body)["tokens"])

    def wait_until_it_works(self) -> None:
        """Wait until the server's loop has begun, some time after its first replies. Raises `EngineError`."""
        self._post("/completion", {"prompt": "a", "n_predict": 0, "cache_prompt": False})

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._closed = True
            self._connection.close()

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
            raise EngineError(f"llama.cpp refused {path} (HTTP {reply.status}): {content[:200]!r}")
        return json.loads(content)
