"""The keywords of :meth:`Client.submit <ffdl_batch.Client.submit>`: the options of ``ffdl-submit`` with underscores."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypedDict, TypeVar

from ffdl_batch.host.fast_dataclass import dataclass

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class AllowedReferences:
    """The references that a manifest may use besides files in its own directory."""

    files: tuple[str, ...] = ()
    """Files, or directories whose files are all allowed (``--allow-file``)."""
    foreign: bool = False
    """Whether a manifest that belongs to another user may have references (``--allow-references``)."""


OWN_DIRECTORY = AllowedReferences()
"""Allows only files in the manifest's own directory."""


class SubmitOptions(TypedDict, total=False):
    """Keywords of all calls that submit. They override the manifest. None is the same as no value.

    Each is the option of ``ffdl-submit`` with that name, and takes the same values.
    """

    time: str | int | None
    """Time limit: minutes, ``[days-]hours:minutes:seconds``, ``2h30m``, or ``UNLIMITED``."""
    partition: str | None
    """Partition, or several separated by commas."""
    account: str | None
    """Account to charge."""
    qos: str | None
    """Quality of service."""
    constraint: str | None
    """Features that the nodes must have."""
    reservation: str | None
    """Reservation to run in."""
    nodelist: str | None
    """Nodes that the job must have."""
    exclude: str | None
    """Nodes that the job must not have."""
    gres: str | None
    """Generic resources of each learner, as ``gpu:a100:2``."""
    gpus: float | str | None
    """GPUs of each learner: ``2``, ``"a100:2"``."""
    cpus: float | str | None
    """CPUs of each learner."""
    cpus_per_task: int | str | None
    """CPUs of each learner, as sbatch names them."""
    mem: int | str | None
    """Memory of each learner: MiB, or a number with K, M, G, T (powers of 1024); 0: all memory of its node."""
    learners: int | str | None
    """Number of learners."""
    network: str | None
    """Level of network isolation: auto, none, job, egress, host."""
    array: str | None
    """One job per index, as ``0-9``, ``1,3,5`` or ``0-99%10``."""
    job_name: str | None
    """Name of the job."""
    dependency: str | None
    """Jobs to wait for, as ``afterok:training-0a1b2c3d4``."""
    begin: str | None
    """Earliest start, as ``16:00``, ``now+1hour`` or ``2027-01-20T12:34``."""
    priority: str | int | None
    """Priority: a number, or ``TOP``. Slurm reserves it for administrators."""
    signal: str | None
    """Signal to the learners before the time limit, as ``USR1@300``."""
    mail_user: str | None
    """Address that gets the mail."""
    mail_type: str | None
    """Events to mail about: ``BEGIN``, ``END``, ``FAIL``, ``REQUEUE``, ``ALL``, …"""
    comment: str | None
    """A comment that the scheduler keeps."""
    output: str | None
    """File for the batch script's own output, with the patterns of sbatch, such as ``%j``."""
    hold: bool | None
    """Submit in held state."""
    no_requeue: bool | None
    """Never let the scheduler start the job again."""
    requeue: bool | str | None
    """Let the scheduler start the job again after a node failure or preemption; with ``"expedite"``, at once."""
    exclusive: bool | str | None
    """Share the nodes with no other job; with ``"user"``, ``"mcs"`` or ``"topo"``, as in sbatch."""
    nice: bool | int | str | None
    """Lower the priority by this number, or by 100 (True)."""
    segment: int | str | None
    """Nodes of each segment of the allocation, if the topology has blocks or rings."""
    export: str | None
    """Variables of this process that learners get: names, or ``NAME=value``, separated by commas."""


def with_explicit_signature(function: F) -> F:
    """Replace ``**options`` in the signature that ``help()`` and notebooks show with the keywords themselves. Type
    checkers see them through ``Unpack`` (PEP 692)."""
    shown = inspect.signature(function)
    keywords = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(kind))
        for name, kind in SubmitOptions.__annotations__.items()
    ]
    own = [one for one in shown.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = shown.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
    return function


def _annotation(kind: object) -> str:
    """Return the text of an annotation that typing has wrapped."""
    return str(getattr(kind, "__forward_arg__", kind))
