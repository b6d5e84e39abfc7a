"""The judge: what was sent beside what was found. Pure, and strict."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sent:
    """One submission."""

    user: str
    job: str
    """Its id; "" = the submission failed."""
    value: str
    """What only this job knows, and writes."""
    through_hub: bool
    by_ffdl_api: bool = False
    status: int = 0
    """The exit status of its learner."""


@dataclass(frozen=True, slots=True)
class Run:
    """A job in Slurm's accounting; moments in seconds since the epoch."""

    user: str
    name: str
    submitted: float
    began: float
    """Not before the beginning of the proof."""
    ended: float
    cpus: int


SUBMISSIONS = (("POST /api/v1/jobs", 200), ("POST /v1/models", 201))
"""Operation and status of accepted submissions in the audit log."""


def most_at_once(lives: Iterable[tuple[float, float]]) -> int:
    """Return the maximum number of intervals [start, end) that overlap."""
    known = list(lives)
    return max((sum(begin <= moment < end for begin, end in known) for moment, _ in known), default=0)


@dataclass(frozen=True, slots=True)
class Found:
    """The observed results."""

    sent: Sequence[Sent]
    results: Mapping[str, Mapping[str, Any]]
    """By id: state, log, lines of the results, owner of the results."""
    listed: Mapping[str, Sequence[str]]
    """By user: the ids that `ffdl list` shows."""
    models: Mapping[str, Mapping[str, Any]]
    """What FfDL's API shows of the jobs that were submitted by it, by id: status, lines of the log, and results."""
    trespasses: Sequence[str]
    audited: Sequence[Mapping[str, Any]]
    slurm_jobs: Mapping[str, Sequence[str]]
    """By user: name and state of each job in Slurm's accounting."""
    leaks: Sequence[str]
    failed_requests: Sequence[str]
    uids: Mapping[str, int]
    limits: Mapping[tuple[str, ...], int]
    """The quota of live jobs by the members of a tenant."""
    runs: Sequence[Run]
    incidents: Sequence[str]
    """The jobs of the incidents that an operator sees."""
    usage: Mapping[str, float]
    """By user: CPU-seconds that an operator sees."""
    operations: int
    """Changes of tenants that the operator made."""

    def troubles(self) -> Iterator[str]:
        """Yield one line per difference."""
        yield from (f"request failed: {one}" for one in self.failed_requests)
        yield from (f"reached another user's job: {one}" for one in self.trespasses)
        yield from (f"secret found: {one}" for one in self.leaks)
        for one in self.sent:
            yield from self._troubles_of(one)
        for user, uid in self.uids.items():
            own = sorted(one.job for one in self.sent if one.user == user)
            if list(self.listed[user]) != own:
                yield f"{user} lists {self.listed[user]}, and sent {own}"
            if len(self.slurm_jobs[user]) != len(own):
                yield f"Slurm executed {len(self.slurm_jobs[user])} jobs of {user}, who sent {len(own)}"
            through_hub = sum(one.through_hub for one in self.sent if one.user == user)
            accepted = sum(
                (line["what"], line["status"]) in SUBMISSIONS and line["caller"] == uid for line in self.audited
            )
            if accepted < through_hub:
                yield f"the audit has {accepted} submissions of {user}, who made {through_hub} through the hub"
        if self.limits:
            yield from self._troubles_of_tenants()
        for line in self.audited:
            if line["caller"] != line["user"] and line["status"] == 200 and line["user"] is not None:
                yield f"the audit has an access to another user: {line}"

    def _troubles_of_tenants(self) -> Iterator[str]:
        """Quotas, incidents and usage beside Slurm's accounting."""
        for members, limit in self.limits.items():
            own = [run for run in self.runs if run.user in members]
            if (most := most_at_once([(run.submitted, run.ended) for run in own])) > limit:
                yield f"{', '.join(members)} had {most} live jobs at once (limit {limit})"
        failed = sorted(one.job for one in self.sent if one.status)
        if sorted(self.incidents) != failed:
            yield f"the hub reports incidents of {sorted(self.incidents)}, but the failed jobs are {failed}"
        for user in self.uids:
            wanted = sum(run.cpus * (run.ended - run.began) for run in self.runs if run.user == user)
            shown = self.usage.get(user, 0.0)
            if abs(shown - wanted) > 0.5:
                yield f"{user} used {wanted} CPU-seconds according to Slurm, but the report shows {shown}"
        changes = sum(line["role"] == "operator" and line["what"].startswith("PUT ") for line in self.audited)
        if changes != self.operations:
            yield f"the audit has {changes} changes of the operator, who made {self.operations}"

    def _troubles_of(self, one: Sent) -> Iterator[str]:
        found = self.results.get(one.job, {})
        digest = hashlib.sha256(one.value.encode()).hexdigest()
        wanted = {
            "state": "FAILED" if one.status else "COMPLETED",
            "log": f"{one.user} {one.value}\n",
            "files": ["run", digest],
            "owner": one.user,
        }
        for name, value in wanted.items():
            if found.get(name) != value:
                yield f"{one.job or one.value} of {one.user}: {name} is {found.get(name)!r}, not {value!r}"
        if one.by_ffdl_api:
            shown = {
                "status": wanted["state"],
                "lines": [f"{one.user} {one.value}"],
                "results": {"runs": "run\n", "digest": f"{digest}\n"},
            }
            if self.models.get(one.job) != shown:
                yield f"{one.job} of {one.user}: FfDL's API shows {self.models.get(one.job)}, not {shown}"

    def report(self) -> str:
        """Return the one line of the proof."""
        troubles = len(list(self.troubles()))
        users, hub = len(self.uids), sum(one.through_hub for one in self.sent)
        models = sum(one.by_ffdl_api for one in self.sent)
        tenants = f" of {len(self.limits) + 1} tenants" if self.limits else ""
        return (
            f"{len(self.sent)} jobs of {users} users{tenants}, {hub} through the hub, {models} by FfDL's API: "
            f"{troubles} differences, "
            f"{len(self.trespasses)} trespasses, {len(self.leaks)} leaks, {len(self.audited)} lines of audit"
        )
