"""Errors in the format of OpenAI's API. They never repeat text from a request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException as FastAPIError
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from memagent.errors import (
    CallLimitError,
    ContextOverflowError,
    DocumentError,
    EngineError,
    JournalError,
    MemAgentError,
    SettingsError,
    StoreError,
    did_you_mean,
    reason,
)
from memagent.server.schemas import ChatOptions, ReadRequest

_CODES: tuple[tuple[type[MemAgentError], int, str], ...] = (
    (ContextOverflowError, 400, "context_length_exceeded"),
    (CallLimitError, 400, "call_limit"),
    (EngineError, 502, "engine_failed"),
    (JournalError, 503, "journal_failed"),
    (StoreError, 503, "store_failed"),
    (SettingsError, 400, "invalid_settings"),
    (DocumentError, 400, "invalid_document"),
    (MemAgentError, 500, "failed"),
)
_FOLDER = re.compile(r"(?<![\w.:/~-])/(?:[^/\s'\"]+/)+")  # of this machine, which clients need not know
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error",
          429: "rate_limit_error"}  # fmt: skip


class Details(BaseModel):
    """What an error says, to people and to programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Failure(BaseModel):
    """An error as clients are sent it."""

    error: Details


FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": Failure, "description": description}
    for status, description in (
        ("4XX", "The request cannot be served as it is: the error says why, and what to change."),
        ("5XX", "The model or the server failed: the error says why, and whether to try again."),
    )
}
"""What any operation may reply instead of its result, for the description of the API."""


class ApiError(FastAPIError):
    """An error with its HTTP status, a `code` for programs and the name of the parameter at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.status, self.message, self.code, self.param = status, message, code, param

    @property
    def body(self) -> dict[str, Any]:
        """The error in the format of OpenAI's API."""
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def response(self) -> JSONResponse:
        """The error as a reply."""
        return JSONResponse(self.body, self.status, self.headers)


def api_error(error: Exception) -> ApiError:
    """The API error for any error."""
    if isinstance(error, ApiError):
        return error
    for kind, status, code in _CODES:
        if isinstance(error, kind):
            return ApiError(status, _FOLDER.sub("", str(error)), code)
    if isinstance(error, RequestValidationError):
        return _explain_validation(error)
    if isinstance(error, HTTPException):
        if isinstance(error.__cause__, OSError):  # a body that did not fit the disk
            return _not_stored(error.__cause__)
        detail = error.detail if isinstance(error.detail, str) else HTTPStatus(error.status_code).phrase
        return ApiError(error.status_code, detail, headers=error.headers)
    return ApiError(500, f"a defect in memagent: {type(error).__name__}", "defect")


def error_of(outcome: Mapping[str, Any]) -> ApiError:
    """The API error that ended a read, from its outcome."""
    error = outcome.get("error")
    if error is None:
        return ApiError(503, "the read was stopped: send the same again to continue it", "stopped")
    statuses = {code: status for _, status, code in _CODES} | {"not_stored": 507}
    return ApiError(statuses.get(error["code"], 500), error["message"], error["code"], error["param"])


def not_found(what: str, id: str) -> ApiError:
    """The error for an id that does not exist or belongs to another key."""
    return ApiError(404, f"there is no {what} {id!r}", f"{what}_not_found", "id")


@contextmanager
def storing() -> Iterator[None]:
    """Raise `ApiError` for what the disk refuses to keep, say because it is full."""
    try:
        yield
    except OSError as error:
        raise _not_stored(error) from error


def _not_stored(error: BaseException) -> ApiError:
    return ApiError(
        507, f"the server cannot store this: {reason(error)}; try again once it can", "not_stored"
    )


def report_errors(app: FastAPI) -> None:
    """Make the app report all errors in the format of OpenAI's API."""

    def respond(_request: Request, error: Exception) -> JSONResponse:
        return api_error(error).response

    for kind in (ApiError, MemAgentError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, respond)


def _explain_validation(error: RequestValidationError) -> ApiError:
    problems = error.errors()
    names = [str(name) for name in problems[0]["loc"] if name not in ("body", "query", "path", "header")]
    message = "; ".join(f"{'.'.join(map(str, item['loc']))}: {_message(item)}" for item in problems[:5])
    # A name may have half a surrogate pair, which no reply can.
    message, param = (text.encode("utf-8", "replace").decode() for text in (message, ".".join(names)))
    return ApiError(400, message, "invalid_request", param or None)


def _message(error: Mapping[str, Any]) -> str:
    if error["type"] == "model_attributes_type":
        return "must be a JSON object, with the header Content-Type: application/json"
    if error["type"] != "extra_forbidden":
        return str(error["msg"])
    known = {*ChatOptions.model_fields, *ReadRequest.model_fields}
    return "unknown" + did_you_mean(str(error["loc"][-1]), known)
