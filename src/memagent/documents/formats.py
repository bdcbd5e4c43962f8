"""HTML, PDF, office and e-book files as Markdown. Whatever a library raises goes to the caller."""

from __future__ import annotations

import logging
import re
import warnings
from typing import BinaryIO


def html_to_markdown(html: str) -> str:
    """The text of a page with its headings, lists, links and tables; scripts, styles and images dropped."""
    from markdownify import markdownify

    # The parser looks through an unfinished last tag once for each of its brackets.
    end = html.rfind(">") + 1
    html = html[:end] + html[end:].replace("<", "&lt;")
    html = re.sub(r"<\?[^>]*>", "", html)  # an XML declaration would be read as text
    with warnings.catch_warnings():  # that a page looks like an address, or like XML
        warnings.simplefilter("ignore")
        return str(
            markdownify(
                html, strip=["img"], heading_style="ATX", escape_asterisks=False, escape_underscores=False
            )
        )


def office_to_markdown(file: BinaryIO, format: str) -> str:
    """The text of a file of the given format ("pdf", "docx", "pptx", "xlsx" or "epub").

    The format's converter is asked for by name: markitdown's own choice might fetch, run or unpack
    something, and takes half a PDF for plain text.
    """
    from markitdown import StreamInfo, converters

    logging.getLogger("pdfminer").setLevel(logging.ERROR)  # it warns of much that does not matter
    converter = getattr(converters, f"{format.capitalize()}Converter")()
    text: str = converter.convert(file, StreamInfo(extension=f".{format}")).markdown
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.split("\n")))
