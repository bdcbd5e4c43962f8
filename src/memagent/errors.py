"""Every error a user can meet.

MemAgentError
├── SettingsError            a flag, file or template that cannot be used
│   ├── ProblemTooLongError  the problem does not fit its token budget
│   └── JournalError         a journal that cannot be read, or is of another read
├── DocumentError            the document cannot be read
├── TrainingError            training cannot go on
└── EngineError              the model could not be reached, or failed for good
    ├── ContextOverflowError the prompt is longer than the model's window
    ├── EmptyAnswerError     the model answered the problem with nothing
    ├── CallLimitError       `max_calls` is used up
    └── SpendingLimitError   the tokens or the money that a run may cost are used up

Each message carries the offending value and the next thing to do.
"""

from __future__ import annotations

import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
# A password may hold a slash: then what follows the host's colon is no port.
_USER = re.compile(r"(?<=://)(?:[^/?#]*|[^/?#:]*:(?!\d+(?:[/?#]|\Z)).*)@")


class MemAgentError(Exception):
    """The root: catch this one to catch them all."""


class SettingsError(MemAgentError, ValueError):
    """A flag, file, variable or template that cannot be used."""


class ProblemTooLongError(SettingsError):
    """The problem does not fit its token budget."""


class JournalError(SettingsError):
    """A journal that cannot be read, or that belongs to another read."""


class DocumentError(MemAgentError):
    """The document cannot be read."""


class TrainingError(MemAgentError):
    """Training cannot go on: a gradient that is no number, a checkpoint of another policy."""


class EngineError(MemAgentError):
    """The model could not be reached, or failed after its retries."""


class ContextOverflowError(EngineError):
    """The prompt is longer than the model's window."""


class EmptyAnswerError(EngineError):
    """The model answered the problem with nothing."""


class CallLimitError(EngineError):
    """The calls that the user allowed are used up."""


class SpendingLimitError(EngineError):
    """The tokens, or the money, that the user allowed are used up."""


def extra_hint(extra: str) -> str:
    """How to install one of the package's extras, which are not on an index: from the checkout."""
    return f"run python -m pip install -e '.[{extra}]' in the checkout of memagent"


def reason(error: BaseException) -> str:
    """What went wrong, without an `OSError`'s number and path: the message around it names the file."""
    return str(getattr(error, "strerror", None) or error)


def without_secrets(text: str) -> str:
    """The text with no user, password or query in any URL: what may be shown or kept."""
    return _URL.sub(lambda url: re.sub(r"\?[^#]+", "?...", _USER.sub("", url[0]), count=1), text)
