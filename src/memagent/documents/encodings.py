"""Detect the encoding of a text file from its first bytes, or that it is not text.

UTF-32 without a byte-order mark, which nothing writes, is not detected.
"""

from __future__ import annotations

import codecs
import unicodedata

from charset_normalizer import from_bytes
from charset_normalizer.utils import any_specified_encoding

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
# The encodings that text files still come in. Among all that Python knows, French would also pass for
# Nordic and English for Romanian. The first in this list wins a tie.
_COMMON = (
    "cp1252", "cp1250", "iso8859_2", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874",
    "koi8_r", "cp866", "gb18030", "big5", "cp932", "euc_jp", "cp949", "utf_16_le", "utf_16_be",
)  # fmt: skip


def detect_encoding(sample: bytes, whole: bool = True) -> str | None:
    """The encoding of a file that begins with `sample`, or None if it is not text.

    A byte-order mark decides; otherwise UTF-8 if it is valid or nearly so; otherwise the best guess of
    charset-normalizer. `whole` says whether the sample is the entire file.
    """
    for mark, encoding in _BOMS:
        if sample.startswith(mark):
            return encoding
    if b"\x1b$" in sample and sample.isascii():
        for encoding in _ESCAPING:
            if _decodes(sample, encoding, whole):
                return encoding
    valid = _decodes(sample, "utf-8", whole)
    if b"\x00" in sample and (wide := _wide_encoding(sample, valid)) is not None:
        return wide
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if (b"\x00" in sample and controls > len(sample) // 1000) or controls > len(sample) // 20:
        return None
    bad = sample.decode("utf-8", "replace").count("\ufffd")
    if valid or bad * 10 < sum(byte >= 0x80 for byte in sample):
        return "utf-8"
    return _guess(sample) or "utf-8"


def is_doubtful(sample: bytes, encoding: str) -> bool:
    """Whether the encoding was guessed from so few letters that it may well be wrong."""
    certain = encoding.startswith("utf-") or encoding in _ESCAPING  # a guess is spelled utf_16_le
    return not certain and sum(byte >= 0x80 for byte in sample) < _FEW_LETTERS


def _decodes(sample: bytes, encoding: str, whole: bool) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(sample, final=whole)
    except UnicodeDecodeError:
        return False
    return True


def _wide_encoding(sample: bytes, valid_utf8: bool) -> str | None:
    """The byte order of UTF-16 without a mark, or None if the sample is not UTF-16.

    The byte that varies less is taken for the high byte; nearly all of the decoded text must be printable. A
    sample that is also valid UTF-8 must be alphabetic, with few high bytes and some ASCII; otherwise any text
    with an occasional NUL would pass.
    """
    even, odd = set(sample[0::2]), set(sample[1::2])
    distinct = min(len(even), len(odd))
    encoding = "utf-16-le" if len(odd) == distinct else "utf-16-be"
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample[: len(sample) // 2 * 2])
    except UnicodeDecodeError:
        return None
    strange = sum(unicodedata.category(it) in ("Cc", "Cn", "Co") and it not in "\t\n\f\r" for it in text)
    alphabetic = distinct <= 4 and sum(map(str.isascii, text)) * 10 >= len(text)
    fits = strange <= len(text) // 1000 and distinct <= min(128, len(text) // 2)
    return encoding if fits and (alphabetic or not valid_utf8) else None


def _guess(sample: bytes) -> str | None:
    encodings = list(_COMMON)
    if not any(0x80 <= byte <= 0x9F for byte in sample):  # where Windows has letters and ISO none
        encodings.remove("cp1250")
    if declared := any_specified_encoding(sample):
        encodings.append(declared)
    for dropped in range(4):  # bytes of a truncated last character
        if matches := list(from_bytes(sample[: len(sample) - dropped], cp_isolation=encodings)):
            first = matches[0]
            equal = [it for it in matches if (it.chaos, it.coherence) == (first.chaos, first.coherence)]
            return min((it.encoding for it in equal), key=encodings.index)
    best = from_bytes(sample).best()
    return best.encoding if best else None
