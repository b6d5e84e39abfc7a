"""Decides which new jobs may be handed over to a scheduler, by quotas of tenants, emergency levers and fair shares.

A request is decided in one transaction. Two hub processes, as during a restart, decide one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from sqlalchemy import case, delete, func, insert, literal, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.sql import ColumnElement

from ffdl_batch.domain.admission import GO, LATER, Answer, Claim, Word
from ffdl_batch.domain.metrics.usage_report import HOUR_S
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.site.hub.fair_window import FairWindow
from ffdl_batch.site.hub.gpu_hours import PREFIX, Period, stored_hours
from ffdl_batch.site.hub.schema import ADMISSIONS
from ffdl_batch.site.hub.tenants import EACH, WHOLE, Lever, LeverKind, Quota, Tenant, read_levers, read_tenants
from ffdl_batch.site.hub.tokens.token_index import account_name
from ffdl_batch.store.database import Database

MOST_LIVE = 50_000
"""Live jobs of one user. It bounds what a user can make the hub store."""
_FORMER_MEMBER = -1
"""Stands for users who used an account of a tenant and are not members now."""
_LOCK = 0x66666468
"""Number of the hub's advisory lock on PostgreSQL: any that no other program uses in the database."""


@dataclass(slots=True)
class Use:
    """What live jobs of a tenant use: of all members, and of each uid."""

    whole: Counter[str]
    of_uid: dict[int, Counter[str]]
    unknown: set[str] = field(default_factory=set)
    """Resources whose use is not known, because the accounting has not been read."""

    def add(self, uid: int, amounts: Mapping[str, float]) -> None:
        """Count amounts of a user."""
        self.whole.update(amounts)
        self.of_uid.setdefault(uid, Counter()).update(amounts)

    def of(self, quota: Quota, uid: int) -> float:
        """Return what counts for a quota of this user, or of the tenant."""
        return (self.whole if quota.member == WHOLE else self.of_uid.get(uid, Counter()))[quota.resource]


@dataclass(frozen=True, slots=True)
class _Asker:
    """The user who asks. `name` is that of the account."""

    uid: int
    name: str


class Payers:
    """Finds the tenant that a job in the accounting belongs to. The accounting does not show whether a user has given
    the account: use under an account of no tenant counts for the only tenant of its user."""

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        self._of_account = {account: one for one in tenants for account in one.accounts}
        self._of_user: dict[str, list[Tenant]] = {}
        for one in tenants:
            for name in one.members.values():
                self._of_user.setdefault(name, []).append(one)

    def find(self, user: str, account: str) -> Tenant | None:
        """Return the tenant; None if the job belongs to none."""
        own = self._of_user.get(user, [])
        return self._of_account.get(account) or (own[0] if len(own) == 1 else None)


class Admission:
    """Admits jobs. Safe in every thread. Methods raise StoreError."""

    def __init__(
        self, database: Database, account: Callable[[int], str] = account_name, window: FairWindow | None = None
    ) -> None:
        """`database` has the hub's tables. `window` divides the submission rate."""
        self._database, self._account = database, account
        self._window = window or FairWindow()

    def decide(self, uid: int, claims: Sequence[Claim], handed: Sequence[str] = ()) -> dict[str, Answer]:
        """Return an answer for each claim. Quotas are not checked again for a job that was admitted with the same
        claim. `handed` are admitted jobs that the scheduler has accepted or rejected."""
        self._window.note_handed(uid, [*handed, *(claim.job for claim in claims)])
        asker = _Asker(uid, self._account(uid))
        with self._database.writing(begin="EXCLUSIVE") as connection:
            if self._database.is_postgres:
                connection.execute(select(func.pg_advisory_xact_lock(literal(_LOCK))))
            own = ADMISSIONS.c.uid == uid
            now = self._database.now(connection)
            known = _known(connection, own, claims, now)
            room = MOST_LIVE - connection.execute(select(func.count()).select_from(ADMISSIONS).where(own)).scalar_one()
            decision = _Decision(connection, asker, read_tenants(connection), read_levers(connection), room, now)
            for claim in claims:
                decision.consider(claim, is_known=claim.job in known)
            for group, weight, jobs in decision.groups():
                room = self._window.room(group, weight, uid, len(jobs))
                self._window.grant(group, uid, jobs[:room])
                decision.put_off(jobs[room:])
            decision.store(known)
        return decision.answers

    def uses(self) -> dict[str, Use]:
        """Return what each tenant uses."""
        with self._database.reading() as connection:
            tenants, now = read_tenants(connection), self._database.now(connection)
            payers = Payers(tenants)
            return {one.name: _use_of(connection, one, payers, now) for one in tenants}

    def live(self, uid: int) -> list[str]:
        """Return the jobs of a user that count as live."""
        with self._database.reading() as connection:
            query = select(ADMISSIONS.c.job).where(ADMISSIONS.c.uid == uid).order_by(ADMISSIONS.c.job)
            return list(connection.execute(query).scalars())

    def users_before(self, age_s: float) -> list[int]:
        """Return the users with admissions that are at least this old."""
        with self._database.reading() as connection:
            oldest = self._database.now(connection) - age_s
            query = select(ADMISSIONS.c.uid).where(ADMISSIONS.c.admitted_at <= oldest).distinct()
            return sorted(connection.execute(query).scalars())

    def end(self, uid: int, jobs: Sequence[str]) -> None:
        """Stop counting these jobs of a user."""
        with self._database.writing() as connection:
            connection.execute(delete(ADMISSIONS).where(ADMISSIONS.c.uid == uid, ADMISSIONS.c.job.in_(jobs)))


class _Decision:
    """The answers to one request."""

    def __init__(
        self,
        connection: Connection,
        asker: _Asker,
        tenants: Sequence[Tenant],
        levers: Sequence[Lever],
        room: int,
        now: float,
    ) -> None:
        """`room` is how many more live jobs the user may have."""
        self._connection, self._asker, self._tenants, self._levers = connection, asker, tenants, levers
        self._room, self._now, self._payers = room, now, Payers(tenants)
        self._uses: dict[str, Use] = {}
        self._admitted: dict[str, tuple[Claim, Tenant | None]] = {}
        self.answers: dict[str, Answer] = {}

    def consider(self, claim: Claim, *, is_known: bool) -> None:
        """Answer by memberships, levers and quotas. A job that was admitted before only waits for its turn,
        or continues. If an unknown job claims to continue, it is new."""
        found = _tenant_of(claim, self._asker, self._tenants)
        if is_known and claim.continues:
            self.answers[claim.job] = GO
            return
        if is_known:
            tenant = None if isinstance(found, Answer) else found
        elif isinstance(found, Answer):
            self.answers[claim.job] = found
            return
        else:
            tenant = found
            answer = _stopped(self._levers, self._asker, _name(tenant)) or self._check_quotas(claim, tenant)
            if answer is None and self._room <= 0:
                answer = Answer(Word.WAIT, f"you have {MOST_LIVE} live jobs, which is the most that this site admits")
            if answer is not None:
                self.answers[claim.job] = answer
                return
        self._room -= not is_known
        self._admitted[claim.job] = (claim, tenant)
        self.answers[claim.job] = GO

    def groups(self) -> list[tuple[str, float, list[str]]]:
        """Return the groups of the admitted jobs: the name, the weight, and the jobs in order."""
        found: dict[str, tuple[str, float, list[str]]] = {}
        for job, (_, tenant) in self._admitted.items():
            name = f"tenant {tenant.name}" if tenant is not None else f"user {self._asker.uid}"
            found.setdefault(name, (name, tenant.weight if tenant is not None else 1.0, []))[2].append(job)
        return list(found.values())

    def put_off(self, jobs: Iterable[str]) -> None:
        """Let admitted jobs wait for their turn."""
        for job in jobs:
            del self._admitted[job]
            self.answers[job] = LATER

    def store(self, known: frozenset[str]) -> None:
        """Store the new admissions."""
        rows = [
            {"uid": self._asker.uid, "job": job, "tenant": _name(tenant), "gpus": claim.gpus,
             "gpu_type": claim.gpu_type, "hours": claim.hours, "admitted_at": self._now}
            for job, (claim, tenant) in self._admitted.items()
            if job not in known
        ]  # fmt: skip
        if rows:
            self._connection.execute(insert(ADMISSIONS), rows)

    def _check_quotas(self, claim: Claim, tenant: Tenant | None) -> Answer | None:
        if tenant is None:
            return None
        if tenant.name not in self._uses:
            self._uses[tenant.name] = _use_of(self._connection, tenant, self._payers, self._now)
        use, amounts = self._uses[tenant.name], _amounts(claim)
        answer = _limited(tenant, use, self._asker, claim)
        if answer is None:
            use.add(self._asker.uid, amounts)
        return answer


def _known(connection: Connection, own: ColumnElement[bool], claims: Sequence[Claim], now: float) -> frozenset[str]:
    """Return the jobs that keep their admission.

    A job whose claim has changed since, after a resume, loses its admission. If it continues with a size that a scaler
    chose, it keeps the admission, and the new size counts.
    """
    columns = ADMISSIONS.c
    asked = {claim.job: (claim.gpus, claim.gpu_type, claim.hours) for claim in claims}
    query = select(columns.job, columns.gpus, columns.gpu_type, columns.hours).where(own, columns.job.in_(list(asked)))
    admitted = {job: tuple(claimed) for job, *claimed in connection.execute(query)}
    changed = {job for job, claimed in admitted.items() if claimed != asked[job]}
    for job in (continuing := changed & {claim.job for claim in claims if claim.continues}):
        values = dict(zip(("gpus", "gpu_type", "hours"), asked[job], strict=True), admitted_at=now)
        connection.execute(update(ADMISSIONS).where(own, columns.job == job).values(values))
    if ended := changed - continuing:
        connection.execute(delete(ADMISSIONS).where(own, columns.job.in_(ended)))
    return frozenset(admitted) - ended


def _name(tenant: Tenant | None) -> str:
    return tenant.name if tenant is not None else ""


def _tenant_of(claim: Claim, asker: _Asker, tenants: Iterable[Tenant]) -> Tenant | Answer | None:
    """Return the tenant of a job, None if it belongs to none, or the refusal."""
    own = [one for one in tenants if one.members.get(asker.uid) == asker.name]
    if claim.account:
        owner = next((one for one in tenants if claim.account in one.accounts), None)
        if owner is None and claim.account_is_checked:
            return None
        if owner in own:
            return owner
        if owner is not None:
            return Answer(
                Word.REFUSE,
                f"account {claim.account!r} belongs to tenant {owner.name!r}, but {asker.name} is not a member; "
                "choose another account with --account, or ask an operator to add you",
            )
    if len(own) > 1:
        names = ", ".join(f"{'/'.join(one.accounts) or 'no account'} ({one.name})" for one in own)
        return Answer(Word.REFUSE, f"{asker.name} is a member of several tenants; choose one with --account: {names}")
    return own[0] if own else None


def _stopped(levers: Iterable[Lever], asker: _Asker, tenant: str) -> Answer | None:
    subjects = {LeverKind.SITE: "", LeverKind.SERVICE: "", LeverKind.USER: asker.name, LeverKind.TENANT: tenant}
    stops = (lever for lever in levers if lever.subject == subjects.get(lever.kind))
    return next((Answer(Word.WAIT, lever.sentence) for lever in stops), None)


def _limited(tenant: Tenant, use: Use, asker: _Asker, claim: Claim) -> Answer | None:
    """Return why the job must wait, or is refused; None if all quotas have room for it."""
    waits: Answer | None = None
    amounts = _amounts(claim)
    own = {quota.resource for quota in tenant.quotas if quota.member == asker.name}
    for quota in tenant.quotas:
        asked = amounts.get(quota.resource, 0.0)
        what = quota.resource
        is_unlimited = what.startswith(PREFIX) and claim.gpus > 0 and not claim.hours
        is_replaced = quota.member == EACH and what in own
        if not (asked or is_unlimited) or is_replaced or quota.member not in (WHOLE, EACH, asker.name):
            continue
        whose = f"tenant {tenant.name}" if quota.member == WHOLE else f"{asker.name} in tenant {tenant.name}"
        if is_unlimited:
            return Answer(Word.REFUSE, f"{what}: the quota of {whose} requires a time limit; set one with --time")
        if asked > quota.amount:
            return Answer(
                Word.REFUSE,
                f"{what}: {asked:g} exceeds the quota of {whose} ({quota.amount:g}); request less, or choose another "
                "account with --account",
            )
        if what in use.unknown:
            waits = waits or Answer(
                Word.WAIT,
                f"waiting for quota of {whose}: the hub has not read all days of {what} from the accounting yet",
            )
            continue
        used = use.of(quota, asker.uid)
        if used + asked > quota.amount and waits is None:
            waits = Answer(
                Word.WAIT,
                f"waiting for quota of {whose}: {what} limit {quota.amount:g}, in use {used:g}, requested {asked:g}",
            )
    return waits


def _amounts(claim: Claim) -> dict[str, float]:
    amounts = {"jobs": 1.0, "gpus": claim.gpus}
    if claim.gpu_type:
        amounts[f"gpus:{claim.gpu_type}"] = claim.gpus
    return amounts | {f"{PREFIX}{period}": claim.gpus * claim.hours for period in Period}


def _use_of(connection: Connection, tenant: Tenant, payers: Payers, now: float) -> Use:
    """Return what a tenant uses: its live jobs, and its GPU-hours of the periods of its quotas. A few statements for
    any number of jobs.

    A live job counts with the GPU-hours that it may still use before its time limit. What it has used is part of the
    accounting.
    """
    columns = ADMISSIONS.c
    rest = columns.hours - (now - columns.admitted_at) / HOUR_S
    rest_gpu_hours = func.sum(case((rest > 0, columns.gpus * rest), else_=0.0))
    query = select(columns.uid, columns.gpu_type, func.count(), func.sum(columns.gpus), rest_gpu_hours).where(
        columns.tenant == tenant.name
    )
    use = Use(Counter(), {})
    for uid, gpu_type, jobs, gpus, rest_of_limits in connection.execute(query.group_by(columns.uid, columns.gpu_type)):
        reserved = {f"{PREFIX}{period}": rest_of_limits for period in Period}
        use.add(uid, {**_amounts(Claim("", gpus=gpus, gpu_type=gpu_type)), "jobs": jobs, **reserved})
    uids = {name: uid for uid, name in tenant.members.items()}
    for what in {quota.resource for quota in tenant.quotas if quota.resource.startswith(PREFIX)}:
        hours = stored_hours(connection, Period(what.removeprefix(PREFIX)), now)
        if not hours.is_known:
            use.unknown.add(what)
        for (user, account), used in hours.used.items():
            if payers.find(user, account) is tenant:
                use.add(uids.get(user, _FORMER_MEMBER), {what: used})
    return use
