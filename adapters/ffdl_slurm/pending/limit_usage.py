"""The figures of a limit that keeps a job waiting: which record of the association manager has it, and how much of it
is in use. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ffdl_batch.domain.pending.explanation import Limit, Measure, Per
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.pending.parsers import LimitRecord

_FIGURE = re.compile(r"(N|[\d.]+)?(?:\(([\d.]+)\))?")
_TRES = {
    "CPUs": "cpu", "memory": "mem", "nodes": "node", "GPUs or other GRES": "gres/", "licenses": "license/",
    "burst buffer": "bb/", "energy": "energy", "billing units": "billing",
}  # fmt: skip
_SUFFIX = {Per.USER: "PU", Per.ACCOUNT: "PA", Per.JOB: "PJ", Per.NODE: "PN"}


@dataclass(frozen=True, slots=True)
class Whose:
    """The job that meets the limit: its QOS, account and user (name and number), and what it asks for, by the name of
    Slurm's trackable resource."""

    qos: str
    account: str
    user: str
    uid: int
    asked: Mapping[str, int]


def with_figures(limit: Limit, records: Sequence[LimitRecord], whose: Whose) -> Limit:
    """`limit` with what is known of it; as it was where nothing is."""
    for name, values in _candidates(limit, records, whose):
        for resource, most, used, tres in _set_figures(limit, values):
            asked = whose.asked.get(tres) or sum(n for key, n in whose.asked.items() if key.startswith(f"{tres}:"))
            shown = str(asked) if asked and limit.measure is Measure.AMOUNT else ""
            return replace(limit, name=name, resource=resource, most=most, used=used, asked=shown)
    return limit


def _candidates(limit: Limit, records: Sequence[LimitRecord], whose: Whose) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the records that may have the limit, the nearest first."""
    if limit.owner == "QOS":
        own = sorted((record for record in records if record.qos), key=lambda one: one.qos != whose.qos)
        for record in own:  # another QOS may be the partition's
            if limit.per is Per.USER:
                yield record.qos, record.users.get(whose.user) or record.users.get(str(whose.uid)) or {}
            elif limit.per is Per.ACCOUNT:
                yield record.qos, record.accounts.get(whose.account) or {}
            yield record.qos, record.values
        return
    associations = [record for record in records if record.account]
    for record in associations:
        if record.account == whose.account and record.user == whose.user:
            yield f"of {whose.user} in {record.account}", record.values
    for record in associations:
        if record.account == whose.account and not record.user:
            yield f"of the account {record.account}", record.values
    for record in associations:
        if record.account != whose.account and not record.user:
            yield f"of the account {record.account}", record.values


def _keys(limit: Limit) -> tuple[str, ...]:
    """Return the names of the limit in `scontrol show assoc_mgr`."""
    association, suffix = limit.owner != "QOS", _SUFFIX.get(limit.per, "")
    if limit.resource == "jobs":
        what = "SubmitJobs" if limit.measure is Measure.SUBMITTED else "Jobs"
        return (f"Grp{what}",) if limit.per is Per.ALL else (f"Max{what}" if association else f"Max{what}{suffix}",)
    if limit.resource == "time":
        return ("GrpWall",) if limit.per is Per.ALL else ("MaxWallPJ",)
    kind = {Measure.MINUTES: "TRESMins", Measure.RUN_MINUTES: "TRESRunMins"}.get(limit.measure, "TRES")
    if limit.per is Per.ALL:
        return (f"Grp{kind}",)
    return (f"{'Min' if limit.least else 'Max'}{kind}{suffix}",)


def _set_figures(limit: Limit, values: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """Resource in words, limit, use and the resource's name, of the entries that have a limit."""
    for key in _keys(limit):
        text = values.get(key, "")
        if limit.resource in ("jobs", "time"):
            if (figure := _figure(text)) is not None:
                yield limit.resource, *figure, limit.resource
            continue
        wanted = _TRES.get(limit.resource, "")
        for part in text.split(","):
            tres, _, value = part.partition("=")
            if tres.startswith(wanted) and (figure := _figure(value)) is not None:
                yield _describe(tres, limit.resource), *figure, tres


def _figure(text: str) -> tuple[str, str] | None:
    """Limit and use of ``2(1)``; None where there is no limit (``N(1)``, or nothing)."""
    match = _FIGURE.fullmatch(text.strip())
    if match is None or match[1] in (None, "N"):
        return None
    return match[1], match[2] or ""


def _describe(tres: str, otherwise: str) -> str:
    name, _, kind = tres.removeprefix("gres/").partition(":")
    if not tres.startswith("gres/"):
        return otherwise
    plain = "GPUs" if name == "gpu" else name
    return f"{plain} of type {kind}" if kind else plain
