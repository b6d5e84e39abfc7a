"""The judge: what was sent beside what was found. Pure, and strict."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that was looked at after the jobs."""

    sent: Sequence[Sent]
    results: Mapping[str, Mapping[str, Any]]
    """By id: state, log, lines of the results, owner of the results."""
    listed: Mapping[str, Sequence[str]]
    """By user: the ids that `ffdl list` shows."""
    trespasses: Sequence[str]
    audited: Sequence[Mapping[str, Any]]
    slurm_jobs: Mapping[str, Sequence[str]]
    """By user: name and state of each job in Slurm's accounting."""
    leaks: Sequence[str]
    failed_requests: Sequence[str]
    uids: Mapping[str, int]

    def troubles(self) -> Iterator[str]:
        """Everything that is not as it must be, one line each."""
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
                line["what"] == "POST /api/v1/jobs" and line["caller"] == uid and line["status"] == 200
                for line in self.audited
            )
            if accepted < through_hub:
                yield f"the audit has {accepted} submissions of {user}, who made {through_hub} through the hub"
        for line in self.audited:
            if line["caller"] != line["user"] and line["status"] == 200 and line["user"] is not None:
                yield f"the audit has an access to another user: {line}"

    def _troubles_of(self, one: Sent) -> Iterator[str]:
        found = self.results.get(one.job, {})
        digest = hashlib.sha256(one.value.encode()).hexdigest()
        wanted = {
            "state": "COMPLETED",
            "log": f"{one.user} {one.value}\n",
            "files": ["run", digest],
            "owner": one.user,
        }
        for name, value in wanted.items():
            if found.get(name) != value:
                yield f"{one.job or one.value} of {one.user}: {name} is {found.get(name)!r}, not {value!r}"

    def report(self) -> str:
        """Return the one line of the proof."""
        troubles = len(list(self.troubles()))
        users, hub = len(self.uids), sum(one.through_hub for one in self.sent)
        return (
            f"{len(self.sent)} jobs of {users} users, {hub} through the hub: {troubles} differences, "
            f"{len(self.trespasses)} trespasses, {len(self.leaks)} leaks, {len(self.audited)} lines of audit"
        )
