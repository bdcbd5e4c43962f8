"""The plan of a tally: what one row is, its fields, and the one SELECT that answers the question.

A model proposes it, a person may change it (TOML), code checks it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field as Constraint
from pydantic import field_validator

from memagent.errors import MemAgentError, SettingsError
from memagent.reading.tally.counting import Table, count
from memagent.reading.tally.prompts import EXAMPLE_ROW
from memagent.strict import StrictModel

Kind = Literal["text", "number", "money", "date", "yes/no"]

MEASURED = ("number", "money")
"""The types that may have a currency: models call money a number, too."""

MAX_FIELDS = 12

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
CURRENCY = "_currency"
"""The end of the name of the column that has the currency of money."""
_ARTICLE = re.compile(r"(?:one|an?|each|every)\s+")
_NO_DAY = re.compile(r"no such column: (day|date|\w+_date)\b", re.IGNORECASE)
_COLUMN = {"text": "TEXT", "number": "REAL", "money": "REAL", "date": "TEXT", "yes/no": "INTEGER"}
_NOTE = {
    "number": "a number",
    "money": "an amount without its currency",
    "date": "'YYYY-MM-DD'",
    "yes/no": "1 or 0",
}


class Field(StrictModel):
    """A field of a row: its name, which is also its column's, its type, and what it means."""

    name: str
    type: Kind = "text"
    meaning: str = ""

    @field_validator("name")
    @classmethod
    def _is_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value) or value.endswith(CURRENCY):
            raise ValueError(f"must be a word of small letters, digits and _, and must not end in {CURRENCY}")
        return value


Fields = Annotated[tuple[Field, ...], Constraint(strict=False, min_length=1, max_length=MAX_FIELDS)]


class Plan(StrictModel):
    """What one row is, its fields, and the SELECT over the table `rows` that answers the question."""

    row: str
    fields: Fields
    sql: str

    @field_validator("fields")
    @classmethod
    def _differ(cls, fields: tuple[Field, ...]) -> tuple[Field, ...]:
        names = [field.name for field in fields]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"the name {min(twice)} occurs twice")
        return fields

    @property
    def meanings(self) -> list[str]:
        """What the fields mean, in words."""
        return [field.meaning or field.name for field in self.fields]

    @property
    def described(self) -> str:
        """The plan as the model sees it when it looks for rows."""
        lines = [
            f"{field.name} ({field.type}){f': {field.meaning}' if field.meaning else ''}"
            for field in self.fields
        ]
        return f"One row: {self.row}\nIts fields:\n" + "\n".join(lines)

    def to_toml(self) -> str:
        """The plan as it is written and changed."""
        lines = [f"row = {_quote(self.row)}", f"sql = {_quote(self.sql)}"]
        for field in self.fields:
            lines += ["", "[[fields]]", f"name = {_quote(field.name)}", f"type = {_quote(field.type)}"]
            lines += [f"meaning = {_quote(field.meaning)}"] if field.meaning else []
        return "\n".join(lines) + "\n"

    def check(self) -> Plan:
        """The plan itself, if its SELECT works on a table without rows. Blocks. Raises `SettingsError`."""
        count(self.sql, Table(self.columns, ()))
        return self

    def pruned(self) -> Plan:
        """The plan without fields that name the row itself or its id, unless the SELECT reads them: texts
        seldom state any. Blocks. Raises as `check` does.
        """
        read = count(self.sql, Table(self.columns, ())).read
        own = _ARTICLE.sub("", self.row.casefold()).partition(" ")[0]
        fields = tuple(
            field
            for field in self.fields
            if field.name in read or not (field.name in ("id", own) or field.name.endswith("_id"))
        )
        return self.model_copy(update={"fields": fields or self.fields})

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the table `rows` with their SQL types; beside numbers, their currency."""
        columns = dict[str, str]()
        for field in self.fields:
            columns[field.name] = _COLUMN[field.type]
            if field.type in MEASURED:
                columns[field.name + CURRENCY] = "TEXT"
        return columns


def read_plan(text: str) -> Plan:
    """The plan that a TOML text holds. Blocks. Raises `SettingsError`."""
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the plan is not valid TOML: {error}") from error
    try:
        return Plan(**values).check()
    except MemAgentError as error:
        raise SettingsError(f"the plan cannot be used: {error}") from error


def parse_plan(reply: str) -> Plan:
    """The plan in a reply, whose first JSON object it is. Blocks. Raises `SettingsError`."""
    values = next(find_objects(reply), None)
    if values is None:
        raise SettingsError("there is no JSON object in it")
    fields = values.get("fields")
    if values.get("row") == EXAMPLE_ROW:
        raise SettingsError("it is the plan of the example, not of this question")
    plan: dict[str, Any] = {
        "row": values.get("row"),
        "sql": str(values.get("sql") or "").strip().rstrip(";"),
        "fields": [_tidy(field) for field in fields] if isinstance(fields, list) else (),
    }
    return _complete(Plan(**plan))


def _complete(plan: Plan) -> Plan:
    """The plan pruned; with a field for a day that, as small models' do, only its SELECT names."""
    try:
        return plan.pruned()
    except SettingsError as error:
        missing = _NO_DAY.search(str(error))
        if not missing:
            raise
        day = Field(name=missing[1].lower(), type="date", meaning="when it was")
        return Plan(row=plan.row, fields=(*plan.fields, day), sql=plan.sql).pruned()


def _tidy(field: Any) -> Any:
    """A field as it was meant: small models write "Supplier Name", and add what nobody asked for."""
    if not isinstance(field, dict):
        return field
    name = re.sub(r"\W+", "_", str(field.get("name", "")).strip().lower()).strip("_")
    return {"name": name, "type": field.get("type", "text"), "meaning": str(field.get("meaning") or "")}


def find_objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, in order; what is torn or no JSON is passed over."""
    decoder, start = json.JSONDecoder(), 0
    while (start := text.find("{", start)) >= 0:
        try:
            value, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
        else:
            yield value


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


PLAN_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "row": {"type": "string"},
            "fields": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_FIELDS,
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "type": {"enum": list(_COLUMN)},
                        "meaning": {"type": "string"},
                    },
                    "required": ["name", "type", "meaning"],
                    "additionalProperties": False,
                },
            },
            "sql": {"type": "string"},
        },
        "required": ["row", "fields", "sql"],
        "additionalProperties": False,
    }
)
"""The JSON schema of a plan, for engines that hold replies to one."""
