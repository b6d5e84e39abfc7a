"""A report in the form that was asked for. What only one form needs is imported for it."""

from __future__ import annotations

from typing import IO

from ffdl_batch.cli.render.document import Document


def write_document(document: Document, form: str, file: IO[str]) -> None:
    """`form` is text, markdown or html."""
    if form == "html":
        from ffdl_batch.cli.render.document_html import html_page

        file.write(html_page(document))
        return
    from ffdl_batch.cli.render.document_text import markdown_lines, text_lines

    for line in markdown_lines(document) if form == "markdown" else text_lines(document):
        file.write(f"{line}\n")
