"""`memagent ask --continue`: the documents of the last read, and the settings that they were read with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from memagent.cli.messages import name_some, tell, warn
from memagent.documents.opening import Document, open_document
from memagent.documents.paths import unescape_path
from memagent.errors import DocumentError, JournalError, SettingsError
from memagent.reading.journal import read_journal
from memagent.reading.lines import Header
from memagent.settings import Settings, user_cache_path

_ANEW = 'ask about them anew: memagent ask "QUESTION" PATH...'


def newest_journal() -> Path:
    """The newest journal in the cache, which is named on stderr. Raises `JournalError` if there is none."""
    folder = user_cache_path() / "journals"
    journals = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not journals:
        raise JournalError(f"there is no journal in {folder}: name one that ask --trace has written")
    warn(f"journal: {journals[-1]}")
    return journals[-1]


def last_read() -> Header:
    """The header of the newest journal. Raises `JournalError` if there is none."""
    return header_of(newest_journal())


def header_of(path: Path) -> Header:
    """The header of a journal. Raises `JournalError` if it is empty or not a journal."""
    header = next(read_journal(path), None)
    if not isinstance(header, Header):
        raise JournalError(f"{path} is empty")
    return header


def check_words(questions: Sequence[str], words: Sequence[str]) -> list[str]:
    """The questions of a follow-up. Raises `SettingsError` for none, and for a path."""
    questions, paths = (questions, words) if questions else (words[:1], words[1:])
    if paths:
        raise SettingsError(f"--continue reads the same documents again: leave out {paths[0]!r}")
    if not questions:
        raise SettingsError('what is the question? memagent ask --continue "QUESTION"')
    return list(questions)


def documents_of(header: Header) -> Document:
    """The documents of a read. Raises `DocumentError` if they have changed."""
    try:
        document = reopen(header)
    except DocumentError as error:
        raise DocumentError(f"{error}; the documents of the last read are not there: {_ANEW}") from error
    if document is None:
        raise DocumentError(f"{name_some(header.sources)}: not as they were at the last read: {_ANEW}")
    return document


def reopen(header: Header) -> Document | None:
    """The documents of a read as they were read; None if they have changed. Raises `DocumentError`."""
    document = open_document(*map(unescape_path, header.sources)).unnamed()
    return document if document.fingerprint == header.sha256 else None


def settings_of(header: Header, settings: Settings, quiet: bool) -> Settings:
    """The settings of a read, except those that flags set now. Says on stderr what is read again."""
    source = click.get_current_context().get_parameter_source
    before = {**header.values["given"], "chunk_tokens": header.budgets["chunk_tokens"]}
    before = {
        name: value for name, value in before.items() if source(name) is not ParameterSource.COMMANDLINE
    }
    read = settings.read.replace(**before)
    how = f"{read.workflow or header.workflow}, chunks of {read.chunk_tokens} tokens"
    tell(f"reading again {name_some(header.sources)}: {how}", quiet=quiet)
    return replace(settings, read=read)


def warn_of_another(model: str, header: Header) -> None:
    """Warn if the last read was with another model, whose tokens and replies differ."""
    if model != header.model:
        warn(f"the last read was with {header.model}, this one is with {model}")
