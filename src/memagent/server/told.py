"""What the tools of `memagent.server.mcp` return: structured, with a schema that a client can read.

They are made from values that have further fields, which are left out.
"""

from __future__ import annotations

from pydantic import BaseModel

from memagent.errors import SettingsError
from memagent.notebooks import Version
from memagent.reading.sources import Statement
from memagent.server.jobs import Jobs
from memagent.server.store import Job, State
from memagent.types import flatten


class ToldRead(BaseModel):
    """How far a read has come: `chunks` of about `chunks_in_all`, and what is remembered so far.

    `passed_over` of these chunks were not read (`screen`).
    """

    id: str
    state: State
    chunks: int = 0
    passed_over: int = 0
    chunks_in_all: int | None = None
    seconds_left: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    memory: str = ""
    error: str | None = None


class ToldAnswer(BaseModel):
    """The answer of a read; `statements` are its sentences, each with the place that says it, or none.

    Without `found`, nothing was noted that an answer could come from, and the answer says so.
    `passed_over` of the `chunks` of the files were not read (`screen`). `cut` replies of the model ended at
    their token budget, so that the memory or the answer may lack their end.
    """

    id: str
    answer: str
    found: bool = True
    statements: list[Statement]
    files: list[str]
    left_out: list[str]
    chunks: int
    passed_over: int = 0
    cut: int = 0
    prompt_tokens: int
    completion_tokens: int


class ToldNotebook(BaseModel):
    """A notebook: what it is about, and the version it is at."""

    name: str
    about: str
    version: int


class ToldVersion(BaseModel):
    """A version of a notebook: from which it came, what was read for it, and its memory.

    `cut` replies of the model ended at their token budget, so that the memory may lack their end.
    """

    number: int
    parent: int
    created: float
    files: list[str]
    model: str
    document_tokens: int
    cut: int = 0
    prompt_tokens: int
    completion_tokens: int
    memory: str


class ToldAddition(BaseModel):
    """What adding to a notebook came to: no version if nothing was new.

    Nothing was noted of the files in `unnoted`, which still count as new.
    """

    versions: list[ToldVersion]
    known: list[str]
    unnoted: list[str]
    left_out: list[str]


class ToldFromNotebook(BaseModel):
    """An answer from a notebook's memory; `statements` are its sentences with the places that say them."""

    answer: str
    version: int
    statements: list[Statement]


def told_read(job: Job, jobs: Jobs) -> ToldRead:
    """A read and its progress."""
    error = job.outcome.get("error", {}).get("message")
    return ToldRead(id=job.id, state=job.state, error=error, **(jobs.told(job) or {}))


def told_answer(job: Job) -> ToldAnswer:
    """The answer of a read. Raises `SettingsError` while there is none."""
    if job.state != "done":
        said = job.outcome.get("error", {}).get("message", "ask read_status until it is done")
        raise SettingsError(f"{job.id} is {job.state}: {said}")
    result = job.outcome["result"]
    blank = [name for _, name in job.request["documents"] if name not in result["sources"]]
    left_out = [*job.request["left_out"], *(f"{name} has no text that can be read" for name in blank)]
    return ToldAnswer(id=job.id, files=result["sources"], left_out=left_out, **result)


def told_version(version: Version) -> ToldVersion:
    """A version of a notebook."""
    return ToldVersion(files=[portion.name for portion in version.portions], **flatten(version))
