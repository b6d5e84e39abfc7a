"""Named secrets: the client's calls about them. Values go to the daemon, and never come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ffdl_batch.client.connection.http_client import Request, Wire, json_request
from ffdl_batch.client.errors import RequestRefused
from ffdl_batch.domain.codec import CodecError, from_plain
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem, SecretView


class Secrets:
    """What can be asked about secrets; :attr:`ffdl_batch.Client.secrets` is one. All calls raise
    :class:`~ffdl_batch.client.ClientError`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def set(self, name: str, value: str) -> SecretView:
        """Set it, anew where it is there."""
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            problem = Problem("C101", "the value is not text in UTF-8: encode it, with base64 for one", ExitCode.USAGE)
            raise RequestRefused(problem) from None
        return _read(self._wire.ask(json_request("PUT", _path(name), {"value": value})).get("secret"))

    def list(self) -> list[SecretView]:
        """All of them, by name."""
        return [_read(plain) for plain in self._wire.ask(Request("GET", "/api/v1/secrets")).get("secrets", ())]

    def remove(self, name: str, *, force: bool = False) -> SecretView:
        """Remove it; one that jobs refer to which live, with `force` alone."""
        return _read(self._wire.ask(Request("DELETE", f"{_path(name)}?force={str(force).lower()}")).get("secret"))


def _path(name: str) -> str:
    return f"/api/v1/secrets/{quote(name, safe='')}"


def _read(plain: Mapping[str, Any] | object) -> SecretView:
    try:
        return from_plain(SecretView, plain)
    except CodecError as error:
        message = f"the daemon's answer is not understood: {error}"
        raise RequestRefused(Problem("S101", message, int(ExitCode.FAILED))) from error
