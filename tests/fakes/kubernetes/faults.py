"""Faults that a test wishes: each is for the requests that it names, and for so many of them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from tests.fakes.kubernetes.refusals import Refusal, too_many
from tests.fakes.kubernetes.web import Request

_REASONS = {500: "InternalError", 502: "InternalError", 503: "ServiceUnavailable", 504: "Timeout", 403: "Forbidden",
            409: "Conflict", 401: "Unauthorized", 410: "Expired"}  # fmt: skip


@dataclass
class Fault:
    """`what`: ``drop`` (executed, but not answered), ``reset`` (neither), ``status``, ``slow`` (before execution)."""

    what: str
    method: str = ""
    path: str = ""
    count: int = 1
    after: int = 0
    seconds: float = 0.0
    code: int = 500
    message: str = ""
    retry_after: int | None = None

    def fits(self, request: Request) -> bool:
        """Whether a request is meant."""
        asked = request.path + ("?watch" if request.asks("watch") else "")
        return (not self.method or self.method == request.method) and re.search(self.path, asked) is not None


class Faults:
    """Those that are wished and not used up."""

    def __init__(self) -> None:
        self._wished: list[Fault] = []

    def add(self, wish: dict[str, Any]) -> None:
        """One more."""
        self._wished.append(Fault(**wish))

    def clear(self) -> None:
        """None any longer."""
        self._wished.clear()

    async def meet(self, request: Request) -> None:
        """What a request meets before it is executed."""
        for fault in list(self._wished):
            if not fault.fits(request):
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            fault.count -= 1
            if fault.count == 0:
                self._wished.remove(fault)
            await self._strike(fault, request)
            return

    async def _strike(self, fault: Fault, request: Request) -> None:
        await asyncio.sleep(fault.seconds)
        if fault.what == "drop":
            request.drop = True
        elif fault.what == "reset":
            request.reset = True
        elif fault.what == "status":
            if fault.code == 429:
                raise too_many(fault.retry_after)
            message = (
                fault.message
                or 'an error on the server ("fault of the test") has prevented the request from succeeding'
            )
            raise Refusal(fault.code, _REASONS.get(fault.code, "InternalError"), message, retry_after=fault.retry_after)
