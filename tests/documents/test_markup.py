"""HTML as Markdown: whatever its tags, nothing runs together, and no depth or length is too much."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.documents.files import UnusableError
from memagent.documents.markup import markdown_of


def markdown(html: str) -> str:
    return "".join(markdown_of([html]))


@pytest.mark.parametrize("end", ["", "</p>"])
def test_paragraphs_with_and_without_end_tags(end: str) -> None:
    html = "".join(f"<p>paragraph {number}{end}" for number in range(400))
    assert markdown(html) == "\n\n".join(f"paragraph {number}" for number in range(400)) + "\n"


@pytest.mark.parametrize("end", ["", "</li>"])
def test_items_with_and_without_end_tags(end: str) -> None:
    html = "<ul>" + "".join(f"<li>item {number}{end}" for number in range(400)) + "</ul>"
    assert markdown(html).splitlines() == [f"* item {number}" for number in range(400)]


@pytest.mark.parametrize("ends", [("", ""), ("</td>", "</tr>")])
def test_rows_with_and_without_end_tags(ends: tuple[str, str]) -> None:
    cell, row = ends
    html = "".join(f"<tr><td>a{number}{cell}<td>b{number}{cell}{row}" for number in range(150))
    lines = markdown(f"<table>{html}</table>").splitlines()
    assert lines.pop(1) == "| --- | --- |"
    assert lines == [f"| a{number} | b{number} |" for number in range(150)]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("<mfrac><mn>1</mn><mn>2</mn></mfrac>", "(1)/(2)"),
        ("<mi>x</mi>\n<mo>=</mo>\n<msup><mrow><mn>1</mn><mn>0</mn></mrow>\n<mn>6</mn></msup>", "x = 10^(6)"),
        (
            "<msqrt><mi>a</mi><mo>+</mo><mi>b</mi></msqrt><mroot><mi>x</mi><mn>3</mn></mroot>",
            "√(a+b)√(x)_(3)",
        ),
        (
            "<munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover><msub><mi>x</mi><mi>i</mi></msub>",
            "∑_(i)^(n)x_(i)",
        ),
        ("<mtable><mtr><mtd>1</mtd><mtd>0</mtd></mtr><mtr><mtd>2</mtd></mtr></mtable>", "1, 0; 2"),
        ("<semantics><mi>x</mi><annotation>\\mathrm{x}</annotation></semantics>", "x"),
    ],
)
def test_a_formula_keeps_its_meaning_on_one_line(formula: str, expected: str) -> None:
    assert markdown(f"so <math>{formula}</math> here").strip("\n") == f"so {expected} here"


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<h1>One</h1>text<h3>Two <i>more</i></h3>", "# One\n\ntext\n\n### Two more"),
        ("<ol start=3><li>a<ul><li>b<li>c</ul><li>d</ol>e", "3. a\n  * b\n  * c\n4. d\n\ne"),
        ("<ul><li>a<p>more</ul>", "* a\n\n  more"),
        ("see <a href='http://x/y z'> this page </a>!", "see [this page](http://x/yz) !"),
        ("<a href='#top'>up</a> <a href='x'></a> <a>bare</a>", "up bare"),
        ("<blockquote>said<p>again</blockquote>end", "> said\n\n> again\n\nend"),
        ("<pre>\n  a\n   b\n</pre>c", "```\n  a\n   b\n```\n\nc"),
        ("use <code>MAX_SIZE * 2</code> here", "use `MAX_SIZE * 2` here"),
        ("un<b>believ</b>able, <del>old</del> new, 10<sup>6</sup>", "unbelievable, ~~old~~ new, 10^6"),
        ("a<br>b<hr>c", "a\nb\n\n---\n\nc"),
        ("<dl><dt>t<dd>u<dt>v<dd>w</dl>", "t\nu\nv\nw"),
        ("<table><tr><th>A<th>B<tr><td><p>one<p>two<td><ul><li>x<li>y</ul></table>",
         "| A | B |\n| --- | --- |\n| one two | * x * y |"),
        ("<table><tr><td></table>a<table><tr><td>alone<tr><td>two</table>b", "a\n\nalone\ntwo\n\nb"),
        ("<table><tr><td>a|b<td>c</table><table><tr><td>d|e</table>", "| a\\|b | c |\n| --- | --- |\n\nd|e"),
        ("<input type=checkbox checked>Yes <input type=Radio>No<input value=x>", "[x] Yes [ ] No"),
        ("a <script>x</script><style>y</style><template>z</template><img alt=''> b", "a b"),
        ("see <a href=m><img alt=' the\nmap '></a>, <img src=x> end", "see [![the map]](m), end"),
        ("a <div style='Display : none'><p>x<br><img alt=y><p>z</div> b <noscript>w</noscript>", "a b"),
        ("a <p hidden>x<p style='color:red;visibility:hidden'>y<p style='display:nonesuch'>b", "a\n\nb"),
        ("<table><tr><td>a<td hidden>x<td>b<tr style='display:none'><td>y<td>z</table>",
         "| a | b |\n| --- | --- |"),
        ("a <template><input type=checkbox>z</template> b", "a b"),
        ("<title/><p>after</p><script src='x'/><p>end</p>", "after\n\nend"),
        ("&lt;b&gt; &amp;lt; &#xD800;&copy;", "<b> &lt; \ufffd©"),
        ("</td></li></ul></table></a></blockquote></pre></h1>a<td>b<li>c", "a\n\nb\n* c"),
        ("<p>a <![CDATA[b & c]]> d<![CDATA[\n]]>e<!-- f -->", "a b & c d e"),
        ("", ""),
        (" \n ", ""),
        ("<!-- only -->", ""),
    ],
    ids=lambda value: value[:30],
)  # fmt: skip
def test_what_becomes_of_tags(html: str, expected: str) -> None:
    assert markdown(html).strip("\n") == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("<tr><th rowspan=2>W<th colspan=2>D<tr><th>a<th>c<tr><td rowspan=2>50<td>1<td>2<tr><td>3<td>4",
         ["W | D a | D c", "50 | 1 | 2", "50 | 3 | 4"]),
        ("<tr><td>x<td>y<td>z<tr><td colspan=2>n<td>1<tr><td>2<td colspan=2 rowspan=2>m<tr><td>3",
         ["x | y | z", "n | n | 1", "2 | m | m", "3 | m | m"]),
        ("<tr><td colspan=2>a<td>5<tr><td>b<td>c<td>6", ["a | a | 5", "b | c | 6"]),
        ("<tr><td>a<td>b<tr><td colspan=2>part<tr><td rowspan=9>c<td rowspan=0>d<tr><td>e",
         ["a | b", "part", "c | d", "c | e"]),
        ("<tr><th colspan=2>a<th>b", ["a | a | b"]),
    ],
)  # fmt: skip
def test_a_cell_that_spans_columns_or_rows_is_in_each_of_them(rows: str, expected: list[str]) -> None:
    lines = markdown(f"<table>{rows}</table>").splitlines()
    assert lines.pop(1) == "|" + " --- |" * (expected[0].count("|") + 1)
    assert lines == [f"| {row} |" for row in expected]


def test_the_title_of_a_table_is_no_head() -> None:
    assert markdown("<table><tr><td colspan=2>T<tr><td>a<td>b<tr><td>c<td>d</table>").splitlines() == [
        *("T", "| a | b |", "| --- | --- |", "| c | d |")
    ]


def test_spans_make_no_page_out_of_a_line() -> None:
    row = f"<tr><td colspan=9999 rowspan=99999>{'text ' * 20}<td rowspan=99999>{'more ' * 199}<td>x"
    text = markdown(f"<table>{row}{'<tr><td>y' * 200}</table>")
    assert len(text) < 200 * 2500


def test_a_table_that_arranges_a_page_keeps_its_paragraphs_and_the_tables_inside() -> None:
    paragraphs = "".join(f"<p>Paragraph {number} of a long text." for number in range(60))
    inner = "<table><tr><td>i<td>j<tr><td>k<td>l</table>"
    text = markdown(f"<table><tr><td>menu<td>{paragraphs}{inner}rest</table>end")
    lines = [line for line in text.splitlines() if line]
    assert lines == [
        *("menu", *(f"Paragraph {number} of a long text." for number in range(60))),
        *("| i | j |", "| --- | --- |", "| k | l |", "rest", "end"),
    ]


@pytest.mark.parametrize(
    "html",
    [
        "<div>" * 100_000 + "the end",
        "<ul><li>x" * 20_000 + "the end",
        "<blockquote>x" * 20_000 + "the end",
        "<table><tr><td>x" * 20_000 + "the end",
        "<a href=x><b>" * 20_000 + "the end",
        "<p>the end" + "<a " * 300_000,
        "<p>the end" + "<!--" * 300_000,
        "<table><tr><td>" + "x y " * 500_000 + "the end",
    ],
    ids=lambda html: html[:20],
)
def test_no_depth_or_length_is_too_much(html: str) -> None:
    started = time.process_time()
    assert "the end" in markdown(html)
    assert time.process_time() - started < 10  # a tenth of a second, where nothing is done twice


@pytest.mark.parametrize(("opened", "closed"), [("<img alt='", "'>"), ("<!--", "-->"), ("<", ">")])
def test_a_tag_without_end_is_an_error_before_it_fills_the_memory(opened: str, closed: str) -> None:
    def blocks(of_tag: int) -> Iterator[str]:
        yield "<p>one</p>"
        for _ in range(3):  # each counts for itself
            yield from (opened, *["x" * 100] * of_tag, closed)
        yield from ["some words " * 50] * 3
        yield "<p>the end</p>"

    assert "the end" in "".join(markdown_of(blocks(8), max_tag=1000))
    with pytest.raises(UnusableError, match="a tag or comment of over"):
        list(markdown_of(blocks(12), max_tag=1000))


pieces = st.sampled_from([
    *("<div>", "</div>", "<p>", "<table><tr>", "<td>", "</td>", "</tr>", "</table>", "<ul>", "<li>", "</ul>"),
    *("<a href='x'>", "</a>", "<pre>\n", "</pre>", "<code>", "</code>", "<h2>", "</h2>", "<ol>", "<sup>"),
    *("<br>", "<b>", "</b>", "<blockquote>", "<script>x</script>", " ", "\n", "&amp;", "<hr>", "<title>"),
    *("<", "é"),
])  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.one_of(pieces, st.integers(0, 999).map("w{}w".format)), max_size=60))
def test_each_word_arrives_once_and_in_order(parts: list[str]) -> None:
    """Whatever the tags: text is neither lost nor said twice, and blocks do not matter."""
    html = "".join(parts)
    text = markdown(html)
    if not {"<", "<title>"} & set(parts):  # which may swallow what follows
        assert re.findall(r"w\d+w", text) == [part for part in parts if part.startswith("w")]
    assert "".join(markdown_of([html[:7], html[7:], ""])) == text
