"""Sends notices of incidents when they happen, by mail and by webhooks.

Each incident becomes one notice for each address. A notice stays in a table until the receiver has accepted it, so a
killed daemon may send it twice but never loses it. One daemon at a time sends. A notice that could not be sent within a
day is abandoned, with an error in the daemon's log.

Mail and HTTP libraries are imported with the first notice: most daemons never send one.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Iterable, Sequence

from ffdl_batch.config import Settings
from ffdl_batch.domain.incidents.incident import Incident, IncidentRow
from ffdl_batch.domain.incidents.site_settings import POLICY, Channel, Notice
from ffdl_batch.domain.job.job import Job, JobId
from ffdl_batch.domain.network_address import is_webhook, parse_url, split_webhook, without_query
from ffdl_batch.host.backoff import growing_pause
from ffdl_batch.services.job_storage import JobStorage
from ffdl_batch.services.leader_lease import LeaderLease, Leases
from ffdl_batch.services.reports.incident_report import incident_rows
from ffdl_batch.store import Noticed

log = logging.getLogger(__name__)

LEASE = "notices"
LONGEST_DELAY_S = 86_400.0
"""Maximum age of an incident that is sent, and how long a notice is tried."""
OVERLAP_S = 60.0
"""Maximum delay between the time of a row that another daemon wrote and the moment it becomes visible."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 3600.0
AT_ONCE = 50
"""Maximum number of notices in one step: when a file server dies, there are hundreds."""
NEVER_S = 3600.0
SLOW_S = 5.0
"""A receiver that took so long to fail is not tried again in the same step."""
STAYS_S = 60.0
"""A daemon without jobs waits for a try that is due within this time."""


class Notifier:
    """Sends the notices of one daemon."""

    def __init__(self, storage: JobStorage, settings: Settings, leases: Leases) -> None:
        self._storage, self._settings, self._leases = storage, settings, leases
        self._turn = LeaderLease(leases, LEASE, self._forget)
        self._seen = 0.0
        self._is_busy = False

    def is_busy(self) -> bool:
        """Return whether a notice is due soon, so that the daemon should not end. Later tries can wait for its next
        start."""
        return self._is_busy

    def _forget(self) -> None:
        self._seen = 0.0

    def step(self) -> float:
        """Add notices of new incidents and send those that are due. Return the seconds until the next one is due.

        Raises StoreError.
        """
        if not self._turn.take():
            return self._leases.seconds
        store = self._storage.store
        self._note(store.now())
        due = store.notices.due(AT_ONCE)
        if due:
            self._send_all(due)
        at = store.notices.next_due()
        pause = NEVER_S if at is None else max(0.0, at - store.now())
        self._is_busy = pause <= STAYS_S
        return pause

    def close(self) -> None:
        """Release the lease."""
        self._turn.end()

    def _note(self, now: float) -> None:
        """Add notices of the incidents that were written since the last step."""
        store = self._storage.store
        noticed = store.incidents_noticed(max(self._seen - OVERLAP_S, now - LONGEST_DELAY_S))
        if noticed:
            jobs = {job.id: job for job in store.get_many({one.incident.job_id for one in noticed})}
            store.notices.add([notice for one in noticed for notice in self._wanted(one.incident, jobs)])
        self._seen = max([now, *(one.noticed_at for one in noticed)])

    def _wanted(self, incident: Incident, jobs: dict[JobId, Job]) -> Iterable[Notice]:
        settings = self._settings.notices
        addresses: list[tuple[Channel, str]] = []
        if incident.origin in settings.origins:
            addresses += [(Channel.MAIL, one) for one in settings.mail]
            addresses += [(Channel.WEBHOOK, one) for one in settings.webhooks]
        addresses += self._policys(incident)
        job = jobs.get(JobId(incident.job_id))
        if job is not None:
            addresses += self._owners(job)
        for channel, address in dict.fromkeys(addresses):
            key = incident.job_id, incident.attempt, incident.episode
            yield Notice(secrets.token_hex(16), *key, channel, address)

    def _policys(self, incident: Incident) -> Iterable[tuple[Channel, str]]:
        """Yield the addresses of the site's policy that matched the incident."""
        said = {line.source.removeprefix(POLICY) for line in incident.evidence if line.source.startswith(POLICY)}
        settings = self._settings
        for address in (one for policy in settings.fault_policies if policy.name in said for one in policy.notify):
            if is_webhook(address):
                yield Channel.WEBHOOK, address
            elif settings.notices.smtp:
                yield Channel.MAIL, address
            else:
                log.error("no notice of %s is sent to %s: notices.smtp names no mail relay", incident.job_id, address)

    def _owners(self, job: Job) -> Iterable[tuple[Channel, str]]:
        """Yield the addresses in the job's manifest. If no relay is configured, only the scheduler sends mail."""
        asked = job.spec.batch.notify
        if asked.webhook:
            yield Channel.WEBHOOK, asked.webhook
        if asked.mail_user and self._settings.notices.smtp:
            address = asked.mail_user if "@" in asked.mail_user else f"{asked.mail_user}@{socket.getfqdn()}"
            yield Channel.MAIL, address

    def _send_all(self, due: Sequence[Notice]) -> None:
        rows = self._rows(due)
        slow: dict[str, str] = {}
        for notice in due:
            if not self._turn.take():  # this took so long that another daemon has the lease
                return
            row, place = rows[notice.job_id, notice.attempt, notice.episode], self._place(notice)
            if place in slow:
                self._failed(notice, row, slow[place], may_pass=True)
                continue
            began = self._storage.clock.monotonic()
            failure = self._send(notice, row)
            if failure and self._storage.clock.monotonic() - began >= SLOW_S:
                slow[place] = failure

    def _place(self, notice: Notice) -> str:
        """Return the server that must accept the notice: the mail relay, or a web server."""
        is_mail = notice.channel is Channel.MAIL
        if is_mail:
            return self._settings.notices.smtp
        url = parse_url(split_webhook(notice.address)[1])
        return f"//{url.authority if url is not None else notice.address}"

    def _rows(self, due: Sequence[Notice]) -> dict[tuple[str, int, str], IncidentRow]:
        found = self._storage.store.incidents_of({notice.job_id for notice in due})
        wanted = {(notice.job_id, notice.attempt, notice.episode) for notice in due}
        noticed = [one for several in found.values() for one in several if _key(one) in wanted]
        return dict(zip(map(_key, noticed), incident_rows(self._storage.store, noticed), strict=True))

    def _send(self, notice: Notice, row: IncidentRow) -> str:
        """Send a notice; return why it was not accepted, or ""."""
        from ffdl_batch.notify.delivery import deliver

        refusal = deliver(notice, row, self._settings.notices, self._storage.user, self._settings.egress)
        if refusal is None:
            self._storage.store.notices.settle(notice, self._storage.store.now())
            return ""
        self._failed(notice, row, refusal.reason, refusal.may_pass)
        return refusal.reason

    def _failed(self, notice: Notice, row: IncidentRow, failure: str, may_pass: bool) -> None:
        store, now = self._storage.store, self._storage.store.now()
        pause = growing_pause(notice.tries + 1, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        where = notice.address if notice.channel is Channel.MAIL else without_query(notice.address)
        if may_pass and now + pause - row.noticed_at < LONGEST_DELAY_S:
            log.warning("the notice of %s to %s is sent later: %s", notice.job_id, where, failure)
            store.notices.put_off(notice, now + pause, failure)
            return
        log.error("the notice of %s (%s) to %s is abandoned: %s", notice.job_id, row.kind, where, failure)
        store.notices.settle(notice, now, failure)


def _key(one: Noticed) -> tuple[str, int, str]:
    return one.incident.job_id, one.incident.attempt, one.incident.episode
