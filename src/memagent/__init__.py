"""memagent: an LLM with a small window reads a document of any length, chunk by chunk.

`read` and `aread` answer a problem from a document; `Read` yields the conversations one by one.
"""

from __future__ import annotations

from memagent.documents.opening import Document, open_document, text_document
from memagent.engines import ScriptedEngine, open_engine
from memagent.errors import (
    CallLimitError,
    ContextOverflowError,
    DocumentError,
    EngineError,
    JournalError,
    MemAgentError,
    ProblemTooLongError,
    SettingsError,
    SpendingLimitError,
)
from memagent.prompts import Prompts, load_prompts
from memagent.reading.api import aread, read
from memagent.reading.progress import Progress, Result
from memagent.reading.read import Read
from memagent.runs.each import Survey, read_each
from memagent.runs.files import FileRow
from memagent.settings import EngineSettings, ReadSettings, Settings, load_settings
from memagent.types import (
    Chunk,
    Completion,
    Conversation,
    Engine,
    Message,
    Model,
    Sampling,
    Spent,
    Trajectory,
    Usage,
)
from memagent.version import __version__

__all__ = [
    "CallLimitError", "Chunk", "Completion", "ContextOverflowError", "Conversation", "Document",
    "DocumentError", "Engine", "EngineError", "EngineSettings", "FileRow", "JournalError", "MemAgentError",
    "Message", "Model", "ProblemTooLongError", "Progress", "Prompts", "Read", "ReadSettings", "Result",
    "Sampling", "ScriptedEngine", "Settings", "SettingsError", "SpendingLimitError", "Spent", "Survey",
    "Trajectory", "Usage", "__version__", "aread", "load_prompts", "load_settings", "open_document",
    "open_engine", "read", "read_each", "text_document",
]  # fmt: skip
