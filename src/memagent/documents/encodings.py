"""Detect the encoding of a text file from its first bytes, or that it is not text.

UTF-16 and UTF-32 without a byte-order mark are not detected.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress

import chardet

from memagent.documents.converters.text import meant_encoding

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_ESCAPING = ("iso2022_kr", "iso2022_jp_2")  # all ASCII, with escape sequences
_FEW_LETTERS = 100  # non-ASCII bytes
_CONTROLS = bytes({*range(32)} - {*b"\b\t\n\x0b\f\r\x1a\x1b"})
# The encodings that text files still come in. Among all that exist, German would also pass for Hebrew.
_COMMON = (
    "cp1252", "cp1250", "iso8859_2", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874",
    "koi8_r", "cp866", "gb18030", "big5", "cp932", "euc-jp", "cp949", "cp437", "cp850", "mac_roman",
)  # fmt: skip
_DECLARED = re.compile(
    rb"<(?:meta|\?xml)\b[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE
)
_DECLARED_WITHIN = 4096  # bytes


def detect_encoding(sample: bytes, whole: bool = True) -> str | None:
    """The encoding of a file that begins with `sample`, or None if it is not text.

    A byte-order mark decides; otherwise UTF-8 if it is valid or nearly so; otherwise what a page declares, if
    that fits; otherwise chardet's best guess. `whole` says whether the sample is the entire file.
    """
    for mark, encoding in _BOMS:
        if sample.startswith(mark):
            return encoding
    if b"\x1b$" in sample and sample.isascii():
        for encoding in _ESCAPING:
            if _decodes(sample, encoding, whole):
                return encoding
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if (b"\x00" in sample and controls > len(sample) // 1000) or controls > len(sample) // 20:
        return None
    bad = sample.decode("utf-8", "replace").count("\ufffd")
    if _decodes(sample, "utf-8", whole) or bad * 10 < sum(byte >= 0x80 for byte in sample):
        return "utf-8"
    if declared := _find_declared(sample, whole):
        return declared
    return chardet.detect(sample, compat_names=False, include_encodings=_COMMON)["encoding"] or "utf-8"


def is_doubtful(sample: bytes, encoding: str) -> bool:
    """Whether the encoding was guessed from so few letters that it may well be wrong."""
    certain = encoding.startswith("utf-") or encoding in (*_ESCAPING, _find_declared(sample, whole=False))
    return not certain and sum(byte >= 0x80 for byte in sample) < _FEW_LETTERS


def _decodes(sample: bytes, encoding: str, whole: bool) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(sample, final=whole)
    except UnicodeError:
        return False
    return True


def _find_declared(sample: bytes, whole: bool) -> str | None:
    """The encoding that a page of HTML or XML declares, unless its bytes do not fit it."""
    match = _DECLARED.search(sample, 0, _DECLARED_WITHIN)
    name = match[1].decode().lower() if match else "utf-8"
    with suppress(LookupError, UnicodeError):
        encoding = meant_encoding(name)
        if not encoding.startswith("utf") and _decodes(sample, encoding, whole):
            return encoding
    return None
