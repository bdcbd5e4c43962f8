"""The prompts of a tally: for its plan, for the rows of a chunk, and for the columns of a table."""

from __future__ import annotations

from memagent.prompts import NO_UPDATE, Prompts, sections

EXAMPLE_SQL = "SELECT boat, SUM(kilograms) FROM rows WHERE fish = 'cod' AND day LIKE '2024-05%' GROUP BY boat"
"""What small models may copy from the prompt for a plan."""

_EXAMPLE = f"""\
<question-{{mark}}>
How many kilograms of cod did each boat land in May 2024?
</question-{{mark}}>
{{{{"row": "one landing of fish by a boat", "fields": [{{{{"name": "boat", "type": "text", "meaning": "the \
name of the boat"}}}}, {{{{"name": "fish", "type": "text", "meaning": "the kind of fish"}}}}, {{{{"name": \
"kilograms", "type": "number", "meaning": "the weight landed"}}}}, {{{{"name": "day", "type": "date", \
"meaning": "when it was landed"}}}}], "sql": "{EXAMPLE_SQL}"}}}}
"""

_PLAN = f"""\
A question is answered from a long text: the text is read piece by piece for the rows of one table, named \
rows, and then SQL counts. You plan the table and the SQL, as one JSON object. An example, of another text:

{_EXAMPLE}
Types are text, number, money, date and yes/no. In SQL (SQLite) money is a number, a date is text such as \
2024-05-31, yes/no is 1 or 0. Take only fields that the question needs.

Now this text, of which you see the beginning:

{sections(text="text", question="question")}
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

_IS_ROW = f"""\
{sections(passage="text")}
Does the passage state {{row}}? Answer with one word, Yes or No.
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
        "is_row": _IS_ROW,
        "again": _AGAIN,
        "columns": _COLUMNS,
    },
)
"""No memory is updated, and code answers."""
