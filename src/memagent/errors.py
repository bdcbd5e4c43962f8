"""Every error a user can meet.

MemAgentError
├── SettingsError            a flag, file or template that cannot be used
│   ├── ProblemTooLongError  the problem does not fit its token budget
│   ├── JournalError         a journal that cannot be read, or belongs to another read
│   └── StoreError           the database or the folder of a server cannot be used
├── DocumentError            the document cannot be read
├── TrainingError            training cannot continue
└── EngineError              the model could not be reached, or failed for good
    ├── ContextOverflowError the prompt is longer than the model's window
    ├── EmptyAnswerError     the model's answer is empty
    ├── CallLimitError       `max_calls` is used up
    └── SpendingLimitError   the run's budget of tokens or money is used up

Each message names the offending value and says what to do next. Where errors end:
- cli: `_run` prints any `MemAgentError` as a line on stderr, with an exit code of its kind.
- server: `api_error` turns one into an error of OpenAI's format, with a status of its kind.
- runs: `record_failure` turns a failed read into a row of the table or the evaluation.
- training: an empty answer earns 0 (`Rollout.attempt`), an example that cannot be read is skipped.
- documents: a file of a directory that has no text is left out and listed as skipped (`Pass`).
- reading: after a `ContextOverflowError`, a chunk is halved, or the text for the answer is shortened.
- engines: `OpenAIEngine` tries again after a `TransientError`, which is not of this tree.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from memagent.types import Usage

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
# A password may contain a slash. In that case, what follows the first colon is not a port.
_USER = re.compile(r"(?<=://)(?:[^/?#]*|[^/?#:]*:(?!\d+(?:[/?#]|\Z)).*)@")


class MemAgentError(Exception):
    """Base class of all errors of memagent."""


class SettingsError(MemAgentError, ValueError):
    """A flag, file, variable or template that cannot be used."""


class ProblemTooLongError(SettingsError):
    """The problem does not fit its token budget."""


class JournalError(SettingsError):
    """A journal that cannot be read, or that belongs to another read."""


class StoreError(SettingsError):
    """The database or the folder of a server cannot be used: damaged, deleted, or replaced."""


class DocumentError(MemAgentError):
    """The document cannot be read."""


class TrainingError(MemAgentError):
    """Training cannot continue: the gradient is not finite, or a checkpoint belongs to another policy."""


class EngineError(MemAgentError):
    """The model could not be reached, or failed after its retries.

    `usage` is that of the last reply, if it was paid for but could not be used, `unusable` those of replies
    before it.
    """

    usage: Usage | None = None
    unusable: tuple[Usage, ...] = ()

    @property
    def paid(self) -> tuple[Usage, ...]:
        """All that was paid for without a usable reply."""
        return (*self.unusable, self.usage) if self.usage else self.unusable


class ContextOverflowError(EngineError):
    """The prompt is longer than the model's window."""


class EmptyAnswerError(EngineError):
    """The model's answer is empty."""


class CallLimitError(EngineError):
    """The number of calls that the user allowed is used up."""


class SpendingLimitError(EngineError):
    """The budget of tokens or money that the user allowed is used up."""


def extra_hint(extra: str) -> str:
    """How to install one of the package's extras: from the checkout, as it is not on a package index."""
    return f"run python -m pip install -e '.[{extra}]' in the checkout of memagent"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is unknown: the known name most like it, or "" for none."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {matches[0]!r}?" if matches else ""


def reason(error: BaseException) -> str:
    """The error's text, without an `OSError`'s number and path: the caller's message names the file."""
    return str(getattr(error, "strerror", None) or error)


def without_secrets(text: str) -> str:
    """The text with users, passwords and queries removed from its URLs: safe to show or store."""
    return _URL.sub(lambda url: re.sub(r"\?[^#]+", "?...", _USER.sub("", url[0]), count=1), text)
