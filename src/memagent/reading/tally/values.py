"""What a value of a row means: numbers, money with its currency, dates, yes or no; and where a text has it.

A value is what the text says, word for word. One that does not parse is kept as it is, and counts as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from memagent.errors import SettingsError, extra_hint
from memagent.reading.tally.counting import Value
from memagent.reading.tally.plan import Kind
from memagent.text import without_accents

NOTHING = frozenset({
    "", "null", "none", "n a", "na", "nil", "unknown", "missing", "not stated", "not mentioned",
    "not specified", "not given", "not available",
})  # fmt: skip
"""Values, folded, that say that the text has none."""

_YES = {"yes": 1, "true": 1, "y": 1, "1": 1, "no": 0, "false": 0, "n": 0, "0": 0}
_CURRENCIES = {
    "€": "EUR", "euro": "EUR", "euros": "EUR", "$": "USD", "us$": "USD", "dollar": "USD", "dollars": "USD",
    "£": "GBP", "pound": "GBP", "pounds": "GBP", "¥": "JPY", "yen": "JPY", "fr": "CHF", "francs": "CHF",
}  # fmt: skip
_CODES = (
    "AED|ARS|AUD|BGN|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EGP|EUR|GBP|HKD|HUF|IDR|ILS|INR|ISK|JPY|KES|KRW|MAD|MXN|MYR"
    "|NGN|NOK|NZD|PEN|PHP|PKR|PLN|QAR|RON|RSD|RUB|SAR|SEK|SGD|THB|TRY|TWD|UAH|USD|VND|ZAR"
)
_TIMES = {
    "k": 3, "thousand": 3, "tausend": 3, "m": 6, "mn": 6, "mio": 6, "million": 6, "millions": 6,
    "millionen": 6, "bn": 9, "billion": 9, "billions": 9, "mrd": 9, "milliarden": 9,
}  # fmt: skip
_DIGITS = r"\d+(?:[.,'’\u00a0\u202f ]\d{3}(?!\d))*(?:[.,]\d+)?"
_NUMBER = re.compile(rf"(?P<sign>(?<![\w.,])[-−])?(?:[^\W\d_]{{0,3}}[$€£¥]\s?)?(?P<digits>{_DIGITS})")
_BRACKETED = re.compile(rf"\([$€£¥]?{_DIGITS}\)")
"""A number below zero, as accountants write it; in a text, it may be an aside as well."""

_TIMES_AFTER = re.compile(rf"\s?({'|'.join(sorted(_TIMES, key=len, reverse=True))})\b", re.IGNORECASE)
_CURRENCY = re.compile(
    rf"[^\W\d_]{{0,2}}[$€£¥]|\b(?:{_CODES}|(?i:euros?|dollars?|pounds?|yen|francs|fr))(?=\W|\d|$)"
)
_DATE = re.compile(
    r"(?:\d{4}[-/.]\d{1,2}(?:[-/.]\d{1,2})?|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2})"
    r"|(?:\d{1,2}(?:st|nd|rd|th|\.|er)?\s+(?:de\s+|of\s+)?)?[^\W\d_]{3,12}\.?,?\s+(?:de\s+)?(?:\d{1,2}(?:st|nd|rd|th)?,?\s+)?\d{4})"
    r"(?!\d|[-/.,]\d)"
)
_HAS_YEAR = re.compile(r"(?<!\d)(?:1[0-9]|20|21)\d\d(?!\d)|\d{1,2}[-/.]\d{1,2}[-/.]\d{2}(?!\d)")
_DOTTED = re.compile(r"\s*\d{1,2}\.\d{1,2}\.\d{2,4}\s*")
_CLOCK = re.compile(r"\d{1,2}:\d\d(?::\d\d)?")
_PARTS = {"%Y-%m-%d": ["day", "month", "year"], "%Y-%m": ["month", "year"]}
_FIGURES = re.compile(r"\s*(\d{1,2})[/-](\d{1,2})[/-](\d{4}|\d{2})\s*")


class Meaning(NamedTuple):
    """What a value means: None for one that does not parse; the currency of money, as far as it is named."""

    value: Value
    currency: str | None = None


def parse(kind: Kind, text: str, order: str = "") -> Meaning:
    """What a value of this kind means. Blocks.

    `order` is "DMY" or "MDY", for dates in figures that could be either. Raises `SettingsError` if what
    parses it is not installed.
    """
    match kind:
        case "number" | "money":
            return Meaning(_number(text, kind), _currency(text))
        case "date":
            return Meaning(_date(text, order))
        case "yes/no":
            return Meaning(_YES.get(fold(text)))
        case "text":
            return Meaning(" ".join(text.split()))


def check_installed() -> None:
    """Raise `SettingsError` if what parses values is not installed. Blocks."""
    for module in ("price_parser", "dateparser", "rapidfuzz"):
        load(module)


@cache
def load(module: str) -> Any:
    """A module of the extra `tally`. Raises `SettingsError` if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise SettingsError(f"tally needs {module}: {extra_hint('tally')}") from error


def date_order(texts: Iterable[str]) -> str:
    """How the dates in figures of a column are written: "DMY" or "MDY"; "" if they do not tell."""
    pairs = [(int(match[1]), int(match[2])) for match in map(_FIGURES.fullmatch, texts) if match]
    days, months = any(first > 12 for first, _ in pairs), any(second > 12 for _, second in pairs)
    return "" if days == months else "DMY" if days else "MDY"


def fold(text: str) -> str:
    """A text as it is compared: small letters without accents, words with one space between them."""
    return " ".join(re.findall(r"\w+", without_accents(text).casefold()))


def find_all(kind: Kind, value: str, text: str) -> list[tuple[int, int]]:
    """The spans of a text that say a value: in its words, or for numbers and dates in another form.
    Blocks.
    """
    if kind in ("number", "money"):
        meaning = parse(kind, value)
        if meaning.value is not None:
            return [span for span, number in _numbers_in(text, kind) if _agree(meaning, number)]
    spans = [match.span() for match in _literal(value).finditer(text)]
    if kind == "date" and not spans:  # if it could be two dates, the text tells which
        days = {parse("date", value, order).value for order in ("DMY", "MDY")} - {None}
        spans = [match.span() for match in _DATE.finditer(text) if _date(match.group(), "") in days]
    return spans


def figures_in(kind: Kind, text: str) -> list[tuple[int, int]]:
    """The spans of a text that may be a date, an amount with its currency, or a number outside of dates.
    Blocks.
    """
    dates = [match.span() for match in _DATE.finditer(text) if _could_be_date(match.group())]
    if kind == "date":
        return dates
    return [
        span
        for span, meaning in _numbers_in(text, kind)
        if (kind != "money" or meaning.currency) and not any(meet(span, day) for day in dates)
    ]


def meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two spans have a character in common."""
    return one[0] < other[1] and other[0] < one[1]


def _could_be_date(text: str) -> bool:
    return any(_date(text, order) for order in ("DMY", "MDY"))


def _agree(one: Meaning, other: Meaning) -> bool:
    same = one.currency is None or other.currency is None or one.currency == other.currency
    return one.value == other.value and same


@lru_cache(maxsize=16)
def _numbers_in(text: str, kind: Kind) -> list[tuple[tuple[int, int], Meaning]]:
    """The numbers of a text, each with what stands around it that belongs to it."""
    numbers = [(match.span(), parse(kind, match.group())) for match in _BRACKETED.finditer(text)]
    for match in _NUMBER.finditer(text):
        start, end = match.span()
        if times := _times_after(text, end, kind):
            end = times.end()
        if before := _CURRENCY.search(text, max(start - 4, 0), start):
            start = before.start() if not text[before.end() : start].strip() else start
        if after := _CURRENCY.match(text, end + (text[end : end + 1] in " \u00a0\u202f")):
            end = after.end()
        numbers.append(((start, end), parse(kind, text[start:end])))
    return numbers


@lru_cache(maxsize=4096)
def _literal(value: str) -> re.Pattern[str]:
    words = re.findall(r"\w+", value)
    if not words:
        return re.compile(r"(?!)")
    before = r"(?<!\w)(?<!\d[.,])" if words[0][0].isdigit() else r"(?<!\w)"
    after = r"(?!\w)(?![.,]\d)" if words[-1][-1].isdigit() else r"(?!\w)"
    return re.compile(before + r"\W{1,3}".join(map(re.escape, words)) + after, re.IGNORECASE)


@lru_cache(maxsize=65536)
def _number(text: str, kind: Kind) -> float | int | None:
    """The one number in a text; None if there is none, or several."""
    matches = list(_NUMBER.finditer(text))
    if len(matches) != 1:
        return None
    match = matches[0]
    amount = load("price_parser").Price.fromstring(match["digits"]).amount
    if amount is None:
        return None
    times = _times_after(text, match.end(), kind)
    number = float(amount) * 10 ** _TIMES[times[1].lower()] if times else float(amount)
    number = -number if match["sign"] or _BRACKETED.fullmatch(text.strip()) else number
    return int(number) if number.is_integer() and abs(number) < 1e15 else number


def _times_after(text: str, end: int, kind: Kind) -> re.Match[str] | None:
    """The word after a number that multiplies it; a letter does so only after money (a rope has 12 m)."""
    times = _TIMES_AFTER.match(text, end)
    return times if times and (kind == "money" or len(times[1]) > 1) else None


def _currency(text: str) -> str | None:
    """The currency that a text names first, by its code if it is one of the usual ones."""
    match = _CURRENCY.search(text)
    return _CURRENCIES.get(match.group().casefold(), match.group().upper()) if match else None


@lru_cache(maxsize=65536)
def _date(text: str, order: str) -> str | None:
    """A date as YYYY-MM-DD, or YYYY-MM if the text names no day; None if it does not say which date it is."""
    with suppress(ValueError):
        return date.fromisoformat(text.strip()[:10]).isoformat()
    if not _HAS_YEAR.search(text):
        return None
    figures = _FIGURES.fullmatch(text)
    if figures and not order and int(figures[1]) <= 12 and int(figures[2]) <= 12 and figures[1] != figures[2]:
        return None
    dotted = "DMY" if _DOTTED.fullmatch(text) else order
    chosen = {"PARSERS": ["absolute-time"], "PREFER_DAY_OF_MONTH": "first"}
    chosen |= {"DATE_ORDER": dotted} if dotted else {}
    numbers = {int(digits) for digits in re.findall(r"\d+", _CLOCK.sub("", text))}
    for form, parts in _PARTS.items():
        day = load("dateparser").parse(text, settings=chosen | {"REQUIRE_PARTS": parts})
        named = {"day", "month", "year"}.intersection(parts) if day else ()
        if day and numbers <= {getattr(day, part) for part in named} | {day.year % 100}:
            return str(day.strftime(form))
    return None
