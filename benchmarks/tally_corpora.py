"""Texts whose records are known: letters with invoices, minutes with decisions, a log in sentences.

Each record is stated once, in one of several wordings, with its number and its date in one of several forms;
other text stands between the records. The answers are counted here from the records, without SQL.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from measure import STORY, load_rows
from rapidfuzz.fuzz import token_set_ratio

from memagent.evaluation.statistics import group_by

TOKENS_PER_CHARACTER = 0.25
_FIELD = re.compile(r"^(\w+) \((text|number|money|date)\)(?:: (.*))?$", re.MULTILINE)
"""A field of the table, as a prompt for rows describes it."""
ABSENT = "Quillfeather Brothers"


@dataclass(frozen=True)
class Record:
    """What one record says; `text` states it, `stated` are its values in the words of the text."""

    name: str
    value: float
    day: date
    kind: str
    text: str
    stated: dict[str, str]


@dataclass(frozen=True)
class Corpus:
    """The words of a corpus: of its records, and of the questions about them."""

    key: str
    row: str
    name: str
    value: str
    value_type: str
    kind: str
    records: str  # as questions call them: "invoices"
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    wordings: tuple[str, ...]
    values: Callable[[random.Random], float]
    unit: str
    meanings: tuple[str, str, str, str]  # of the fields, as a person would put them
    near: tuple[str, ...]  # wordings of what has the same values and is no such row
    heading: str = ""  # of an entry; without one, each is a line
    labels: Mapping[str, str] = field(default_factory=dict)  # that a model judges, by the name of their field

    @property
    def fields(self) -> list[dict[str, str]]:
        """The fields of a plan that serves all questions."""
        if self.labels:
            own = {"name": "message", "type": "text", "meaning": "Message and its number"}
            judged = ({"name": name, "type": "yes/no", "meaning": f"whether it is {label}"}
                      for name, label in self.labels.items())  # fmt: skip
            return [own, *judged]
        names, types = (self.name, self.value, "day", self.kind), ("text", self.value_type, "date", "text")
        return [
            {"name": name, "type": kind, "meaning": meaning}
            for name, kind, meaning in zip(names, types, self.meanings, strict=True)
        ]


INVOICES = Corpus(
    "invoices", "one invoice that a supplier has sent", "supplier", "amount", "money", "item", "invoices",
    ("Nordholz GmbH", "Baker & Sons", "Atelier Lumiere", "Castello Foods", "Ostrava Steel",
     "Finch Printing", "Grand Canal Glass", "Hammer & Tong", "Ivory Paper Mill", "Juniper Cleaning"),
    ("shelves", "lamps", "doors", "paper", "tiles", "carpets"),
    ("Dear colleagues,\n\n{name} has sent us an invoice of {value}, dated {day}, for {kind}. Please enter "
     "it in the books.\n\nYours, Accounts",
     "Dear Mrs Keller,\n\nwith its invoice of {day} {name} charges {value} for {kind}. We have checked the "
     "delivery, and nothing was missing.\n\nBest wishes, the warehouse",
     "To the office:\n\nthe {kind} that came last week were not free after all. On {day} the invoice of "
     "{name} arrived, and it comes to {value}.\n\nRegards, reception"),
    lambda chance: chance.randrange(40, 4000) + chance.choice((0, 0.5, 0.25)), "EUR",
    ("who has sent it", "what it comes to", "when it is dated", "what it is for"),
    ("Dear colleagues,\n\n{name} offers to make us new {kind} for {value}, and holds to that until {day}. "
     "Nothing has been ordered.\n\nYours, purchasing",
     "Dear Mrs Keller,\n\nthe old {kind} are gone: {name} fetched them on {day} and paid us {value} for "
     "them.\n\nBest wishes, the warehouse",
     "To the office:\n\nfrom {day} on {name} insures our {kind} against fire, up to {value}.\n\nRegards, "
     "reception"),
    "Letter",
)  # fmt: skip
MINUTES = Corpus(
    "minutes", "one decision that gives somebody a task", "owner", "hours", "number", "area", "decisions",
    ("Anna Berg", "Bruno Costa", "Chidi Okafor", "Dana Novak", "Elif Kaya", "Farid Haddad", "Greta Lind",
     "Hugo Marsh", "Ines Prado", "Jonas Weiss"),
    ("hiring", "safety", "marketing", "research", "purchasing", "training"),
    ("Decision: {name} takes over the work on {kind}. It is due on {day} and will take {value} hours.",
     "The meeting decided that {name} will see to {kind} by {day}; {value} hours are set aside for it.",
     "As nobody else came forward, {name} was asked to finish the task in {kind}, for which {value} hours "
     "are planned, until {day}. This was decided without a vote."),
    lambda chance: chance.randrange(2, 90), "hours",
    ("who has to do it", "how many hours are planned for it", "when it is due", "what the work is about"),
    ("{name} reported on {kind}: the work was finished on {day} and had taken {value} hours.",
     "Somebody proposed that {name} spend {value} hours on {kind} by {day}. The meeting voted against it.",
     "On {day} {name} had given a talk of {value} hours about {kind}, for which all were grateful."),
    "Point",
)  # fmt: skip
LOG = Corpus(
    "log", "one stop of a machine", "machine", "minutes", "number", "cause", "stops",
    ("Press 4", "Press 9", "Oven 2", "Oven 7", "Loom 11", "Loom 23", "Crane 5", "Pump 31", "Pump 48",
     "Saw 6"),
    ("power failure", "worn belt", "overheating", "missing material", "cleaning", "software fault"),
    ("On {day} {name} stopped for {value} minutes because of {kind}.",
     "{name} stood still for {value} minutes on {day}; the cause was {kind}.",
     "Cause of the stop of {name} on {day}: {kind}. It lasted {value} minutes."),
    lambda chance: chance.randrange(3, 240), "minutes",
    ("which machine stopped", "for how many minutes", "when it stopped", "why it stopped"),
    ("{name} was painted on {day}, which took {value} minutes longer than planned; {kind} was not to blame.",
     "A lesson of {value} minutes about {kind} was held beside {name} on {day}.",
     "On {day} {name} ran for {value} minutes without a break, in spite of {kind}."),
)  # fmt: skip
CORPORA = {item.key: item for item in (INVOICES, MINUTES, LOG)}


def make(
    corpus: Corpus, tokens: int, records: int, seed: int = 0, near_misses: int = 0
) -> tuple[str, list[Record]]:
    """A text of about so many tokens with so many records, and these.

    `near_misses` are passages with the same values that are no records.
    """
    chance = random.Random(f"{corpus.key} {seed}")
    entries = [make_record(corpus, chance) for _ in range(records)]
    near = [make_record(corpus, chance, chance.choice(corpus.near)).text for _ in range(near_misses)]
    own = sum(len(text) + 20 for text in [*near, *(record.text for record in entries)])
    others = make_paragraphs(chance, max(0, int(tokens / TOKENS_PER_CHARACTER) - own))
    blocks: list[str] = [record.text for record in entries] + near + others
    order = list(range(len(blocks)))
    chance.shuffle(order)
    entries = [entries[number] for number in order if number < records]
    if not corpus.heading:
        return "\n".join(blocks[number] for number in order) + "\n", entries
    parts = [f"## {corpus.heading} {index}\n\n{blocks[number]}" for index, number in enumerate(order, 1)]
    return "\n\n".join(parts) + "\n", entries


def make_record(corpus: Corpus, chance: random.Random, wording: str = "") -> Record:
    """A record, in one of the wordings unless that is given."""
    name, kind, value = chance.choice(corpus.names), chance.choice(corpus.kinds), corpus.values(chance)
    day = date(2025, 1, 1) + timedelta(chance.randrange(365))
    written = {
        "name": name, "kind": kind, "value": _number(value, corpus, chance),
        "day": chance.choice((day.isoformat(), f"{day.day} {day:%B %Y}", f"{day:%B} {day.day}, {day.year}")),
    }  # fmt: skip
    text = (wording or chance.choice(corpus.wordings)).format(**written)
    stated = {corpus.name: name, corpus.value: written["value"], "day": written["day"], corpus.kind: kind}
    return Record(name, value, day, kind, text, stated)


def _number(value: float, corpus: Corpus, chance: random.Random) -> str:
    if corpus.value_type != "money":
        return f"{value:g}"
    return chance.choice((f"{value:,.2f} EUR", f"EUR {value:.2f}", f"€{value:,.2f}"))


def make_paragraphs(chance: random.Random, characters: int) -> list[str]:
    """Paragraphs of a story, none with a number, until there are so many characters."""
    story = [
        part
        for part in STORY.read_text("utf-8").split("\n\n")
        if len(part) > 80 and not any(map(str.isdigit, part))
    ]
    paragraphs, length = list[str](), 0
    while length < characters:
        paragraphs.append(" ".join(chance.choice(story).split()))
        length += len(paragraphs[-1]) + 20
    return paragraphs


Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Question:
    """A question, the SELECT that answers it, and the result as it is counted here."""

    text: str
    sql: str
    expected: Rows


def questions(corpus: Corpus, records: Sequence[Record]) -> list[Question]:
    """Twenty-five questions about a corpus."""
    c, many = corpus, corpus.records
    name, other, kind = c.names[0], c.names[3], c.kinds[1]
    bound = sorted(record.value for record in records)[len(records) // 2]
    of = {
        "name": lambda item: item.name == name,
        "other": lambda item: item.name == other,
        "kind": lambda item: item.kind == kind,
    }
    march, where = (lambda item: item.day.month == 3), {
        "name": f"{c.name} = '{name}'", "other": f"{c.name} = '{other}'", "kind": f"{c.kind} = '{kind}'",
        "march": "day LIKE '2025-03%'", "half": "day BETWEEN '2025-04-01' AND '2025-06-30'",
        "bound": f"{c.value} > {bound:g}", "absent": f"{c.name} = '{ABSENT}'",
    }  # fmt: skip
    of |= {"march": march, "half": lambda item: date(2025, 4, 1) <= item.day <= date(2025, 6, 30),
           "bound": lambda item: item.value > bound, "absent": lambda item: item.name == ABSENT}  # fmt: skip
    phrases = {
        "name": f"with the {c.name} {name}", "other": f"with the {c.name} {other}",
        "kind": f"with the {c.kind} {kind}", "march": "in March 2025", "half": "from April to June 2025",
        "bound": f"of more than {bound:g} {c.unit}", "absent": f"with the {c.name} {ABSENT}",
    }  # fmt: skip

    def pick(key: str) -> list[Record]:
        return [record for record in records if of[key](record)]

    result = [Question(f"How many {many} are there?", "SELECT COUNT(*) FROM rows", [(len(records),)])]
    for key in ("name", "kind", "march", "half", "bound", "absent"):
        sql = f"SELECT COUNT(*) FROM rows WHERE {where[key]}"
        result.append(Question(f"How many {many} {phrases[key]} are there?", sql, [(len(pick(key)),)]))
    result.append(_aggregate(f"What is the sum of the {c.value} of all {many}?", "SUM", c, "", records))
    for key in ("name", "kind", "march", "half"):
        text = f"What is the sum of the {c.value} of all {many} {phrases[key]}?"
        result.append(_aggregate(text, "SUM", c, where[key], pick(key)))
    result.append(_aggregate(f"What is the average {c.value} of the {many}?", "AVG", c, "", records))
    for key in ("other", "kind"):
        text = f"What is the average {c.value} of the {many} {phrases[key]}?"
        result.append(_aggregate(text, "AVG", c, where[key], pick(key)))
    result.append(_aggregate(f"What is the largest {c.value} of all {many}?", "MAX", c, "", records))
    text = f"What is the largest {c.value} of the {many} {phrases['name']}?"
    result.append(_aggregate(text, "MAX", c, where["name"], pick("name")))
    result.append(_aggregate(f"What is the smallest {c.value} of all {many}?", "MIN", c, "", records))
    distinct = f"SELECT DISTINCT {c.name} FROM rows"
    for key in ("march", "kind"):
        text = f"List every {c.name} of the {many} {phrases[key]}."
        names = sorted({item.name for item in pick(key)})
        result.append(Question(text, f"{distinct} WHERE {where[key]}", [(item,) for item in names]))
    sums = group_by(records, lambda record: record.name)
    counts = group_by(records, lambda record: record.kind)
    totals: Rows = [(key, _sum(group)) for key, group in sums.items()]
    result.append(Question(f"What is the sum of the {c.value} for each {c.name}?",
                           f"SELECT {c.name}, SUM({c.value}) FROM rows GROUP BY {c.name}",
                           totals))  # fmt: skip
    result.append(Question(f"How many {many} are there for each {c.kind}?",
                           f"SELECT {c.kind}, COUNT(*) FROM rows GROUP BY {c.kind}",
                           [(key, len(group)) for key, group in counts.items()]))  # fmt: skip
    best, total = sorted(totals, key=lambda item: -item[1])[:3], f"SUM({c.value}) AS total"
    result.append(Question(f"Rank the three {c.name}s with the largest sum of {c.value}.",
                           f"SELECT {c.name}, {total} FROM rows GROUP BY {c.name} "
                           "ORDER BY total DESC LIMIT 3",
                           best))  # fmt: skip
    most = max(counts.items(), key=lambda count: (len(count[1]), count[0]))[0]
    result.append(Question(f"Which {c.kind} has the most {many}?",
                           f"SELECT {c.kind} FROM rows GROUP BY {c.kind} "
                           f"ORDER BY COUNT(*) DESC, {c.kind} DESC LIMIT 1", [(most,)]))  # fmt: skip
    result.append(Question(f"How many different {c.name}s are there?",
                           f"SELECT COUNT(DISTINCT {c.name}) FROM rows", [(len(sums),)]))  # fmt: skip
    assert len(result) == 25, len(result)
    return result


def _aggregate(text: str, how: str, corpus: Corpus, where: str, records: Sequence[Record]) -> Question:
    sql = f"SELECT {how}({corpus.value}) FROM rows" + (f" WHERE {where}" if where else "")
    values = [record.value for record in records]
    if not values:
        return Question(text, sql, [(None,)])
    counts: dict[str, Callable[[list[float]], float]] = {"SUM": sum, "AVG": mean, "MAX": max, "MIN": min}
    return Question(text, sql, [(counts[how](values),)])


def _sum(records: Iterable[Record]) -> float:
    return sum(record.value for record in records)


def labelled(file: Path, tokens: int) -> tuple[Corpus, str, list[Question]]:
    """A text and questions of OOLONG's kind, from a file of its `validated_data`: how many are of each label.

    What the label is no text states: a model judges it, as yes or no.
    """
    rows, length = list[dict[str, str]](), 0
    for row in load_rows(file):
        rows.append(row)
        length += len(row["input"]) + 15
        if length * TOKENS_PER_CHARACTER > tokens:
            break
    text = "\n".join(
        f"Message {number}: {' '.join(row['input'].split())}" for number, row in enumerate(rows, 1)
    )
    counts = Counter(row["label"] for row in rows)
    kinds = " or ".join(sorted(counts))
    names = {label: re.sub(r"\W+", "_", label.lower()) for label in counts}
    asked = [
        Question(
            f"Each message is {kinds}. How many messages are {label}?",
            f"SELECT COUNT(*) FROM rows WHERE {names[label]} = 1",
            [(count,)],
        )
        for label, count in counts.items()
    ]
    labels = {name: label for label, name in names.items()}
    return replace(LOG, key=file.stem, row="one message", records="messages", labels=labels), text, asked


def plan_of(corpus: Corpus, question: Question) -> dict[str, Any]:
    """The plan that a perfect model makes."""
    return {"row": corpus.row, "fields": corpus.fields, "sql": question.sql}


class PerfectReplies:
    """What a model replies that plans as it is asked to, overlooks nothing and invents nothing."""

    def __init__(self, corpus: Corpus, records: Sequence[Record], asked: Sequence[Question]) -> None:
        self._corpus, self._questions = corpus, asked
        self._records = defaultdict[str, list[Record]](list)
        for record in records:
            self._records[record.stated["day"]].append(record)
        self._days = sorted(self._records, key=len, reverse=True)

    def __call__(self, messages: Sequence[Any]) -> str:
        prompt = messages[-1].content
        if prompt.rstrip().endswith("The JSON object:"):
            best = max(
                (question for question in self._questions if question.text in prompt),
                key=lambda item: len(item.text),
            )
            return json.dumps(plan_of(self._corpus, best))
        if prompt.rstrip().endswith("Yes or No."):
            return "Yes" if any(record.text in prompt for record in chain(*self._records.values())) else "No"
        columns = {
            name: self._column(kind, f"{name} {meaning}") for name, kind, meaning in _FIELD.findall(prompt)
        }
        days = [day for day in self._days if day in prompt]
        records = [record for day in days for record in self._records[day] if record.text in prompt]
        rows = [{name: record.stated[column] for name, column in columns.items()} for record in records]
        return json.dumps(rows)

    def _column(self, kind: str, words: str) -> str:
        """What a field means that a model has named in its own words."""
        name, value, day, other = self._corpus.fields
        if kind != "text":
            return str((day if kind == "date" else value)["name"])
        columns = name, other, value, day
        return str(
            max(columns, key=lambda item: token_set_ratio(f"{item['name']} {item['meaning']}", words))["name"]
        )
