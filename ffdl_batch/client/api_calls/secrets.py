"""Calls about named secrets. Values are sent to the daemon, which never returns them."""

from __future__ import annotations

from urllib.parse import quote

from ffdl_batch.client.api_calls.requests import read_answer
from ffdl_batch.client.connection.http_client import Request, Wire, json_request
from ffdl_batch.client.errors import RequestRefused
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.views import Problem, SecretView


class Secrets:
    """The calls about secrets, as :attr:`ffdl_batch.Client.secrets` has them. All calls raise
    :class:`~ffdl_batch.client.ClientError`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def set(self, name: str, value: str) -> SecretView:
        """Set a secret, or replace its value."""
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            problem = Problem("C101", "the value is not UTF-8 text; encode it, for example with base64", ExitCode.USAGE)
            raise RequestRefused(problem) from None
        return self._one(json_request("PUT", _path(name), {"value": value}))

    def list(self) -> list[SecretView]:
        """Return all secrets, by name."""
        return [
            read_answer(SecretView, plain)
            for plain in self._wire.ask(Request("GET", "/api/v1/secrets")).get("secrets", ())
        ]

    def remove(self, name: str, *, force: bool = False) -> SecretView:
        """Remove a secret; with `force`, also one that unfinished jobs refer to."""
        return self._one(Request("DELETE", f"{_path(name)}?force={str(force).lower()}"))

    def _one(self, request: Request) -> SecretView:
        return read_answer(SecretView, self._wire.ask(request).get("secret"))


def _path(name: str) -> str:
    return f"/api/v1/secrets/{quote(name, safe='')}"
