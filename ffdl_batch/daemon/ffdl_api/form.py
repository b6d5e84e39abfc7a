"""Reads the form of a new model: a manifest, and an archive that is written where archives are kept."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ffdl_batch.attempt.layout import Root
from ffdl_batch.services.data.model_archives import IncomingArchive
from ffdl_batch.services.refusals import bad_request, wrong_usage

MAX_MANIFEST = 1 << 20
_MANIFEST, _MODEL = "manifest", "model_definition"


def receive_form(root: Root, content_type: str, chunks: Iterable[bytes]) -> tuple[str, str]:
    """Read a form (RFC 7578); return the text of the manifest, and the SHA-256 of the archive, which is kept.

    Nothing is left behind if this raises Refused or OSError.
    """
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise wrong_usage("the body must be multipart/form-data with a boundary")
    with ExitStack() as stack:
        form = _Form(root, stack)
        try:
            parser = MultipartParser(options[b"boundary"], form.callbacks())
            for chunk in chunks:
                parser.write(chunk)
            parser.finalize()
        except FormParserError as error:
            raise wrong_usage(f"the form cannot be read: {error}") from error
        return form.text(), form.keep()


class _Form:
    """The parts that have been read."""

    def __init__(self, root: Root, stack: ExitStack) -> None:
        self._root, self._stack = root, stack
        self._manifest = bytearray()
        self._archive: IncomingArchive | None = None
        self._header, self._value, self._part = b"", b"", ""

    def callbacks(self) -> Any:
        """Return the functions that the parser calls."""
        return {
            "on_part_begin": self._on_part,
            "on_header_field": self._on_name,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header,
            "on_part_data": self._on_data,
        }

    def text(self) -> str:
        """Return the manifest. Raises Refused."""
        if not self._manifest:
            raise bad_request("C101", f"the form has no {_MANIFEST}")
        try:
            return self._manifest.decode()
        except UnicodeDecodeError as error:
            raise bad_request("C101", f"the manifest is not UTF-8: {error}") from None

    def keep(self) -> str:
        """Keep the archive; return its SHA-256. Raises Refused."""
        if self._archive is None:
            raise bad_request("C102", f"the form has no {_MODEL}", cure="send a zip file with the model")
        return self._archive.keep()

    def _on_part(self) -> None:
        self._part = ""

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._part = parse_options_header(self._value)[1].get(b"name", b"").decode("latin-1")
            if self._part == _MODEL:
                if self._archive is not None:
                    raise wrong_usage(f"the form has more than one {_MODEL}")
                self._archive = self._stack.enter_context(IncomingArchive(self._root))
        self._header = self._value = b""

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._part == _MODEL and self._archive is not None:
            self._archive.write(data[start:end])
        elif self._part == _MANIFEST:
            self._manifest += data[start:end]
            if len(self._manifest) > MAX_MANIFEST:
                raise bad_request("C101", f"the manifest is larger than {MAX_MANIFEST // 1024} KiB")
