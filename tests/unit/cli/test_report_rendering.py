"""What a report looks like: text, Markdown, CSV and HTML; and that no word of a user's steers any of them."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser

import pytest

from ffdl_batch.cli.render.document import (
    Bars,
    Cell,
    Document,
    Section,
    Series,
    markdown_lines,
    number_column,
    table_of,
    text_column,
    text_lines,
    write_csv,
)
from ffdl_batch.cli.render.document_html import html_page

NASTY = "<script>alert(1)</script> | \x1b[31m*_`[x](y)"
VOID = {"meta", "rect"}


def document(name: str = "ada", value: Cell = 12.346) -> Document:
    columns = (text_column("USER"), number_column("HOURS", 1))
    table = table_of("By user", columns, [(name, value), ("b", None)], "A note.")
    chart = Bars("Jobs", ("1", name), (Series("ours", (3.0, None)), Series("published", (1.5, 0.0))), "%")
    sections = (Section("Hours", ("One.",), (table,), (chart,)), Section("Empty"))
    return Document("Use of November", ("Times are local.",), sections)


class Page(HTMLParser):
    """Tags in balance, and what the page holds."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_text_report_prints_titles_and_aligned_rows() -> None:
    head = ["Use of November", "===============", "Times are local.", "", "Hours", "-----", "One.", ""]
    table = ["By user", "USER  HOURS", "ada    12.3", "b         -", "A note."]
    assert list(text_lines(document())) == [*head, *table]


def test_markdown_report_right_aligns_numbers() -> None:
    lines = list(markdown_lines(document()))
    assert lines[:3] == ["# Use of November", "", "Times are local."]
    at = lines.index("| USER | HOURS |")
    assert lines[at + 1 : at + 4] == ["| --- | ---: |", "| ada | 12.3 |", "| b | - |"]


def test_html_report_is_self_contained_and_draws_no_bar_for_missing_value() -> None:
    page = Page(html_page(document()))
    assert page.open == []
    tags = {tag for tag, _ in page.seen}
    assert {"svg", "table", "style"} <= tags
    assert not tags & {"script", "link", "img", "iframe", "object"}
    links = [value for _, attributes in page.seen for name, value in attributes.items() if name in ("src", "href")]
    assert links == []
    policy = [attributes.get("content") for tag, attributes in page.seen if tag == "meta"]
    assert "default-src 'none'; style-src 'unsafe-inline'" in policy
    assert "@media print" in "".join(page.words)
    bars = [one for tag, one in page.seen if tag == "rect" and one["height"] == "10"]
    widths = [float(one["width"] or 0) for one in bars]
    assert len(widths) == 2 + 3  # the legend's two, and three values of four
    assert widths[2:] == [460.0, 230.0, 0.0]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("2023-11-14T21:13:20", ["2023-11-14T21:13:20"]),
        ("scheduler.cancelled_by_others", ["scheduler.cancelled_by_others"]),
        ("training-123456789_100 (2)", ["training-123456789_100", "(2)"]),
        ("gpu-001 gpu-002 gpu-003 +1", ["gpu-001", "gpu-002", "gpu-003", "+1"]),
        ("learner 2: RuntimeError: out of memory", []),
        ("/home/ada/" + "very-long/" * 20, []),
        ("", [""]),
    ],
)
def test_html_report_breaks_short_cells_only_between_words(text: str, pieces: list[str]) -> None:
    """Long cells are broken anywhere and take the rest of the width: the page is readable at 1,300 pixels."""
    html = html_page(document(text))
    style, cell = "".join(Page(html).words), html.split("<tbody>")[1].split("</td>")[0]
    assert re.findall(r'class="s">([^<]*)<', f"{cell}<") == pieces
    assert ".s{white-space:nowrap}" in style and "overflow-wrap:anywhere" in style
    assert "svg{max-width:100%" in style  # a chart is no wider than the window


def test_reports_escape_markup_and_control_characters_in_names() -> None:
    page = Page(html_page(document(NASTY)))
    assert "script" not in {tag for tag, _ in page.seen}
    assert "<script>alert(1)</script> | \\x1b[31m*_`[x](y)" in page.words
    row = next(line for line in markdown_lines(document(NASTY)) if "alert" in line)
    assert row == "| \\<script\\>alert(1)\\</script\\> \\| \\\\x1b\\[31m\\*\\_\\`\\[x\\](y) | 12.3 |"
    assert all("\x1b" not in line for line in text_lines(document(NASTY)))


@pytest.mark.parametrize("render", [text_lines, markdown_lines])
def test_reports_keep_name_with_newline_in_one_row(render: object) -> None:
    assert callable(render)
    assert any("two lines" in line for line in render(document("two\nlines")))


@pytest.mark.parametrize(
    ("cell", "written"),
    [("=1+1", "'=1+1"), ("@SUM(A1)", "'@SUM(A1)"), ("-x", "'-x"), (-1.5, "-1.5"), (None, ""), ("a,b\n", "a,b\n")],
)
def test_write_csv_escapes_text_that_starts_formula(cell: object, written: str) -> None:
    out = io.StringIO()
    write_csv(out, ("one", "two"), [(cell, 1)])
    assert list(csv.reader(io.StringIO(out.getvalue()))) == [["one", "two"], [written, "1"]]
