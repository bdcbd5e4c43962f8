"""What a question to each of many files would take at most, before anything is paid."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from memagent.documents.files import NoTextError
from memagent.errors import DocumentError
from memagent.reading.forecast import forecast
from memagent.reading.many.files import look
from memagent.reading.many.record import Record
from memagent.reading.many.run import Survey, found_files, identities_of
from memagent.types import NOTHING_SPENT, Engine, Spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What would be read, and what that takes at most.

    Rows, one per question and file: `to_read`; `kept` from an earlier run; `no_text`, of files without text;
    `left_out`, of links that lead out of a folder. `unreadable` holds errors of files that cannot be read.
    `exceeded` says which limit would stop the run, or one of its reads, if it took the maximum.
    """

    files: int
    to_read: int = 0
    kept: int = 0
    no_text: int = 0
    left_out: int = 0
    unreadable: tuple[str, ...] = ()
    document_tokens: int = 0
    spent: Spent = NOTHING_SPENT
    exceeded: str = ""


async def forecast_each(survey: Survey, engine: Engine) -> Forecast:
    """What `read_each` would take at most. Reads all that is new, and writes nothing.

    What an interrupted run has already paid is not deducted. Raises as `read_each` does.
    """
    spending, max_calls, most_calls = survey.spending, survey.settings.read.max_calls, 0
    files = await asyncio.to_thread(found_files, survey)
    identities = await identities_of(survey, engine)
    record = await asyncio.to_thread(Record.peek, survey.folder)
    rows: Counter[str] = Counter()
    unreadable: list[str] = []
    document_tokens, most = 0, Spent()
    for file in files:
        for problem in survey.problems:
            if file.refusal:
                rows["left_out"] += 1
                continue
            try:
                found = await asyncio.to_thread(look, file, identities[problem], record, survey.verify)
                if found.document is None:
                    rows["no_text" if found.error else "kept"] += 1
                    continue
                now = await forecast(problem, found.document, engine.model, survey.settings.read)
            except NoTextError:
                rows["no_text"] += 1
            except DocumentError as error:
                unreadable.append(str(error))
            else:
                rows["to_read"] += 1
                document_tokens += now.document_tokens
                most_calls = max(most_calls, now.spent.calls)
                most += now.spent
    stops_a_read = f"`max_calls` {max_calls}" if max_calls and most_calls > max_calls else ""
    return Forecast(
        files=len(files),
        **rows,
        unreadable=tuple(unreadable),
        document_tokens=document_tokens,
        spent=most,
        exceeded=spending.find_limit(most) or stops_a_read,
    )
