"""The page of the addresses that get notices of incidents, with a test of each: it is sent by this process, with the
settings that the daemon has."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from ffdl_batch.client.connection.daemon_settings import own_settings
from ffdl_batch.config import Settings
from ffdl_batch.domain.incidents.incident import IncidentRow, Origin
from ffdl_batch.domain.incidents.site_settings import Channel, Notice
from ffdl_batch.domain.network_address import is_webhook, without_query
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.host.users import user_name
from ffdl_batch.notify.delivery import deliver
from ffdl_batch.web.pages import Site

_ELSEWHERE = "The daemon is on another host, and only a page of that host can send a test with its settings."


@dataclass(frozen=True, slots=True)
class Target:
    """An address of the configuration."""

    address: str
    why: str
    """Which incidents it gets."""

    @property
    def is_mail(self) -> bool:
        """Whether it gets mail."""
        return not is_webhook(self.address)

    @property
    def shown(self) -> str:
        """The address without its secrets."""
        return self.address if self.is_mail else without_query(self.address)


class Notices:
    """Routes for notices."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        """Return the addresses."""
        return await self._page(request)

    async def test(self, request: Request) -> Response:
        """Send a test to an address: ``target`` is its number in the list, or ``webhook`` is another address."""
        async with request.form(max_files=0, max_fields=10) as form:
            number, webhook = str(form.get("target", "")), str(form.get("webhook", "")).strip()
        settings = await run_in_threadpool(self._settings)
        targets = list(targets_of(settings)) if settings is not None else []
        chosen = Target(webhook, "") if webhook else None
        if number.isdecimal() and int(number) < len(targets):
            chosen = targets[int(number)]
        if settings is None or chosen is None or (webhook and chosen.is_mail):
            return await self._page(request, message="Name the address of a webhook, as in batch.notify.", status=422)
        why = await run_in_threadpool(send_test, settings, chosen)
        if why:
            return await self._page(request, message=f"{chosen.shown} did not accept the test: {why}", status=502)
        return await self._page(request, done=f"{chosen.shown} accepted the test.")

    def _settings(self) -> Settings | None:
        """Return the settings of the daemon; None if it is on another host. Raises ClientError."""
        place = self._site.place()
        return None if place.is_other_host else own_settings(place.environ).settings

    async def _page(self, request: Request, *, message: str = "", done: str = "", status: int = 200) -> Response:
        settings = await run_in_threadpool(self._settings)
        values = {
            "targets": list(targets_of(settings)) if settings is not None else [],
            "elsewhere": _ELSEWHERE if settings is None else "",
            "message": message,
            "done": done,
        }
        return self._site.render(request, "notices.html", values, status)


def targets_of(settings: Settings) -> Iterator[Target]:
    """Yield the addresses that the configuration names."""
    notices = settings.notices
    which = "all incidents" if set(notices.origins) == set(Origin) else f"incidents of {', '.join(notices.origins)}"
    for address in dict.fromkeys((*notices.mail, *notices.webhooks)):
        yield Target(address, which)
    for policy in settings.fault_policies:
        for address in policy.notify:
            yield Target(address, f"incidents of the policy {policy.name}")


def send_test(settings: Settings, target: Target) -> str:
    """Send a notice of an invented incident. Return why it was not accepted, or ""."""
    now, user = time.time(), user_name(os.getuid())
    row = IncidentRow(
        "test", 1, "test", "test", "platform", "a test of the notices", "nothing: this is a test", now, now, "",
        "This is a test from the page of ffdl.", "test", user,
    )  # fmt: skip
    channel = Channel.MAIL if target.is_mail else Channel.WEBHOOK
    if channel is Channel.MAIL and not settings.notices.smtp:
        return "notices.smtp names no mail relay"
    notice = Notice(secrets.token_hex(16), row.job, row.attempt, row.episode, channel, target.address)
    refusal = deliver(notice, row, settings.notices, user, settings.egress)
    return refusal.reason if refusal is not None else ""
