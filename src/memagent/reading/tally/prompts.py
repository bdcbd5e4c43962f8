"""The prompts of a tally: for its plan, for the rows of a chunk, and for the columns of a table."""

from __future__ import annotations

import json
from collections.abc import Sequence

from memagent.prompts import NO_UPDATE, Prompts, sections

EXAMPLE_ROW = "one landing of fish by a boat"
"""What small models may copy from the prompt for a plan."""

_EXAMPLES = (
    (
        "How many kilograms of cod did each boat land in May 2024?",
        EXAMPLE_ROW,
        ("boat: text: the name of the boat", "fish: text: the kind of fish",
         "kilograms: number: the weight landed", "day: date: when it was landed"),
        "SELECT boat, SUM(kilograms) FROM rows WHERE fish = 'cod' AND day LIKE '2024-05%' GROUP BY boat",
    ),
    (
        "How many lessons were given from June to August 2024?",
        "one lesson",
        ("teacher: text: who gave it", "day: date: when it was given"),
        "SELECT COUNT(*) FROM rows WHERE day BETWEEN '2024-06-01' AND '2024-08-31'",
    ),
    (
        "List the guests who stayed more than 3 nights.",
        "one stay of a guest",
        ("guest: text: who stayed", "nights: number: how many nights the guest stayed",
         "day: date: when the guest came"),
        "SELECT DISTINCT guest FROM rows WHERE nights > 3",
    ),
    (
        "Which kind of ticket brought in the most?",
        "one ticket that was sold",
        ("kind: text: the kind of ticket", "price: money: what it cost"),
        "SELECT kind FROM rows GROUP BY kind ORDER BY SUM(price) DESC LIMIT 1",
    ),
)  # fmt: skip
"""Questions about other texts, each with what one row is, its fields, and the SELECT."""


def _show_example(question: str, row: str, fields: Sequence[str], sql: str) -> str:
    """An example as it stands in a template."""
    names = "name", "type", "meaning"
    plan = {
        "row": row,
        "fields": [dict(zip(names, field.split(": "), strict=True)) for field in fields],
        "sql": sql,
    }
    return f"Question: {question}\n{json.dumps(plan)}\n\n".replace("{", "{{").replace("}", "}}")


_PLAN = f"""\
A question about a long text is answered by counting: the text is read piece by piece for the rows of one \
table, named rows, and then SQL counts. You plan the table and the SQL, as one JSON object. Types are text, \
number, money, date and yes/no. In SQL (SQLite) money is a number, a date is text such as 2024-05-31, yes/no \
is 1 or 0. Examples, about other texts:

{"".join(_show_example(*example) for example in _EXAMPLES)}\
{sections(question="question")}
The JSON object:
"""

_REPAIR = f"""\
A text is read for the rows of one table, named rows, and then SQL (SQLite) answers a question. The table \
and the SQL were planned, as one JSON object, but the plan is wrong.

{sections(question="question", plan="plan", mistake="mistake")}
Reply with the right plan: one JSON object with "row", "fields" (each with "name", "type" and "meaning") and \
"sql".
"""

_ROWS = f"""\
A text is read for the rows of a table.

{sections(table="table", text="text")}
List every such row that the text states, as JSON: a list of objects with the names of the fields as keys. \
Copy each value from the text exactly as it is written there; null for a field that the text does not state. \
If the text states no such row, the list is empty: [].
"""

_STATES_ROW = f"""\
{sections(passage="text")}
Does the passage state {{row}}, with {{fields}}? Answer with one word, Yes or No.
"""

_AGAIN = f"""\
A passage is read for the rows of a table.

{sections(table="table", passage="text")}
The passage states {{figures}}. Reply with the row of the table that they belong to, as JSON: a list of \
objects with the names of the fields as keys. Copy each value from the passage exactly as it is written \
there; null for a field that the passage does not state.
"""

_COLUMNS = f"""\
A table is read for the rows of another table.

{sections(wanted="wanted", table="table")}
The first line of the table has the names of its columns. Reply with one JSON object: for each field that is \
wanted, the name of the column that holds it; null if none does.
"""

PROMPTS = Prompts(
    update=NO_UPDATE,
    answer="{problem}{memory}",
    own={
        "plan": _PLAN,
        "repair": _REPAIR,
        "rows": _ROWS,
        "states_row": _STATES_ROW,
        "again": _AGAIN,
        "columns": _COLUMNS,
    },
)
"""No memory is updated, and code answers."""
