"""JSON bodies of requests: how much one may hold, and parsing that leaves the event loop free."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from memagent.server.errors import ApiError, api_error

MAX_VALUES = 100_000
"""The most values of a body. A parser holds the GIL while it makes them, for a tenth of a second at most.
Texts cost next to nothing, however long they are."""

_ESCAPED = re.compile(rb"\\.", re.DOTALL)


class Values:
    """Counts the values of a JSON body that comes in pieces, by what stands before them."""

    def __init__(self) -> None:
        self._count, self._in_string, self._rest = 0, False, b""

    def add(self, piece: bytes) -> None:
        """Count the values of the next piece. Raises `ApiError` for too many."""
        piece = _ESCAPED.sub(b"", self._rest + piece)
        self._rest = b"\\" if piece.endswith(b"\\") else b""  # what it escapes is in the next piece
        texts = piece.split(b'"')
        outside = b"".join(texts[self._in_string :: 2])
        self._in_string ^= len(texts) % 2 == 0
        self._count += sum(map(outside.count, (b",", b"[", b"{")))
        if self._count > MAX_VALUES:
            message = f"the request has more than {MAX_VALUES:,} values: send a long text as one string"
            raise ApiError(400, f"{message}, or upload it as a file", "too_many_values")


class ParsingRoute(APIRoute):
    """A route whose JSON body, if it has one, is parsed in a thread."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the route."""
        handle = super().get_route_handler()
        model = self.body_field.field_info.annotation if self.body_field else None
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return handle

        async def parse(request: Request) -> Response:
            return await handle(_ParsedRequest(model, request))

        return parse


class _ParsedRequest(Request):
    """A request whose JSON is an instance of a model, which FastAPI takes as it is."""

    def __init__(self, model: type[BaseModel], request: Request) -> None:
        super().__init__(request.scope, request.receive)
        self._model = model

    async def json(self) -> BaseModel:
        """The model. Raises `ApiError`."""
        raw = await self.body()
        try:
            return await asyncio.to_thread(self._model.model_validate_json, raw)
        except ValidationError as error:
            wrong = [
                {**detail, "loc": ("body", *detail["loc"])} for detail in error.errors(include_url=False)[:5]
            ]
            raise api_error(RequestValidationError(wrong)) from None
