"""Counting with SQL that a model wrote: it can read the table, and do nothing else."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from memagent.errors import SettingsError
from memagent.reading.tally.counting import MAX_RESULTS, Table, count

TABLE = Table(
    {"name": "TEXT", "amount": "REAL"},
    [{"name": f"N{number % 7}", "amount": number} for number in range(500)],
)

WRITING = [
    "INSERT INTO rows VALUES ('x', 1)", "DELETE FROM rows", "UPDATE rows SET amount = 0", "DROP TABLE rows",
    "CREATE TABLE other (a)", "CREATE TEMP TABLE other AS SELECT * FROM rows", "ALTER TABLE rows ADD b",
    "CREATE VIEW v AS SELECT 1", "CREATE TRIGGER t AFTER INSERT ON rows BEGIN SELECT 1; END", "VACUUM",
    "REINDEX rows", "ANALYZE", "BEGIN", "COMMIT", "SAVEPOINT a", "REPLACE INTO rows VALUES ('x', 1)",
    "CREATE INDEX i ON rows (name)", "CREATE VIRTUAL TABLE f USING fts5(a)", "DETACH main",
    "CREATE TEMP TRIGGER x DELETE ON rows BEGIN SELECT 1; END", "EXPLAIN DROP TABLE rows",
    "PRAGMA query_only = 0",
]  # fmt: skip
OUTSIDE = [
    "ATTACH '{file}' AS f", "VACUUM INTO '{file}'", "SELECT load_extension('{file}')",
    "SELECT readfile('{file}')",
    "SELECT writefile('{file}', 'x')", "PRAGMA writable_schema = 1", "PRAGMA temp_store_directory = '{file}'",
    "SELECT * FROM sqlite_master", "SELECT sql FROM sqlite_schema", "SELECT * FROM pragma_table_info('rows')",
    "SELECT edit('{file}')", "SELECT fts3_tokenizer('a')", "SELECT * FROM dbstat", "SELECT sqlite_version()",
    "SELECT zeroblob(1000000000)", "SELECT randomblob(1000000000)", "SELECT printf('%1000000000d', 1)",
    "SELECT * FROM pragma_database_list", "SELECT * FROM json_each('[1]')", "SELECT generate_series(1, 9)",
    "SELECT replace(name, '', name) FROM rows", "SELECT hex(randomblob(100))",
    "EXPLAIN SELECT * FROM rows, sqlite_master",
]  # fmt: skip
ENDLESS = [
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
    "WITH RECURSIVE n(i) AS (SELECT 'a' UNION ALL SELECT i || i FROM n) SELECT MAX(i) FROM n",
    "WITH RECURSIVE n(i) AS (VALUES (1) UNION SELECT i + 1 FROM n LIMIT 1000000000) SELECT MAX(i) FROM n",
    "SELECT COUNT(*) FROM rows a, rows b, rows c, rows d, rows e",
    "SELECT * FROM rows a, rows b, rows c, rows d ORDER BY a.amount + d.amount",
    "SELECT group_concat(a.name) FROM rows a, rows b, rows c",
]
BROKEN = [
    "", ";", "SELECT", "SELECT FROM rows", "SELECT nothing FROM rows", "SELECT * FROM nowhere", "rows", "\0",
    "SELECT 1; DROP TABLE rows", "SELECT 1; SELECT 2", "SELECT \0 FROM rows",
    "SELECT " + "(" * 2000, "SELECT '" + "a" * 2_000_000,
    "SELECT * FROM rows WHERE " + " AND ".join(["1"] * 5000), "-- nothing", "/* nothing */",
]  # fmt: skip
WRAPPED = [
    "{}",
    "{};",
    " \n{}",
    "/* SELECT */ {}",
    "WITH a AS (SELECT 1) {}",
    "SELECT * FROM ({})",
    "({})",
    "{} -- SELECT",
]
HOSTILE = [
    wrap.format(sql) for sql, wrap in itertools.product(WRITING + OUTSIDE + ENDLESS[:1], WRAPPED)
] + ENDLESS[1:] + BROKEN  # fmt: skip


@pytest.mark.parametrize("sql", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_sql_is_an_error_and_touches_nothing(sql: str, tmp_path: Path) -> None:
    file, before = tmp_path / "file.db", set(os.listdir())
    with pytest.raises(SettingsError):
        count(sql.replace("{file}", str(file)), TABLE)
    assert not file.exists() and set(os.listdir()) == before


def test_counts_sums_and_groups() -> None:
    assert count("SELECT COUNT(*), SUM(amount) FROM rows", TABLE).rows == ((500, 124750.0),)
    grouped = count("SELECT name, COUNT(*) AS n FROM rows GROUP BY name ORDER BY n DESC, name LIMIT 2", TABLE)
    assert grouped.rows == (("N0", 72), ("N1", 72)) and grouped.columns == ("name", "n")
    assert grouped.read == {"name"}


def test_names_are_found_whatever_their_case() -> None:
    assert count("SELECT COUNT(*) FROM rows WHERE name = 'n3'", TABLE).rows == ((71,),)


def test_subqueries_and_window_functions_work() -> None:
    inner = "SELECT name, SUM(amount) AS s FROM rows GROUP BY name"
    ranked = count(
        f"WITH t AS ({inner}) SELECT name, RANK() OVER (ORDER BY s DESC) AS r FROM t LIMIT 1", TABLE
    )
    assert ranked.rows == (("N2", 1),)


def test_a_result_is_bounded() -> None:
    assert len(count("SELECT a.name FROM rows a, rows b", TABLE).rows) == MAX_RESULTS
