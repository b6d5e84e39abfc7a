"""Decides which operations a caller may run; no other module does. The daemon's gate calls it before any route runs.

An operation is named by its `operationId` in the OpenAPI document. Operations that are not in the table are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from ffdl_batch.domain.access import Role, Scope
from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import FILES, StoreKind
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.domain.job.submission import Caller
from ffdl_batch.domain.job.views import JobView, Problem
from ffdl_batch.services.refusals import Refused


class Right(StrEnum):
    """What an operation needs."""

    IDENTITY = "identity"
    """Every admitted caller has it: see one's own role and rights, and the description of the interface."""
    STATES = "states"
    """See jobs, their states, and the daemon's health and figures."""
    CONTENT = "content"
    """See the output and the submissions of jobs, reports, and the names of secrets."""
    STOP = "stop"
    """Halt and cancel."""
    CHANGE = "change"
    """Submit, make all other changes, and run programs beside a learner."""
    LOGIN = "login"
    """Store a token of `ffdl login`, which the request itself proves."""
    TOKENS = "tokens"
    """Create, list and revoke tokens."""


OPERATIONS: Mapping[str, Right] = {
    "openapi": Right.IDENTITY,
    "whoami": Right.IDENTITY,
    "array": Right.STATES,
    "events": Right.STATES,
    "get": Right.STATES,
    "health": Right.STATES,
    "list": Right.STATES,
    "prometheus": Right.STATES,
    "scaler_explain": Right.STATES,
    "scaler_replay": Right.STATES,
    "scaler_status": Right.STATES,
    "states": Right.STATES,
    "wait": Right.STATES,
    "wait_array": Right.STATES,
    "why": Right.STATES,
    "advise": Right.CONTENT,
    "ffdl_get_model": Right.CONTENT,
    "ffdl_list_models": Right.CONTENT,
    "ffdl_get_definition": Right.CONTENT,
    "ffdl_get_trained_model": Right.CONTENT,
    "ffdl_list_emetrics": Right.CONTENT,
    "ffdl_list_loglines": Right.CONTENT,
    "ffdl_stream_logs": Right.CONTENT,
    "list_secrets": Right.CONTENT,
    "logs": Right.CONTENT,
    "metrics": Right.CONTENT,
    "outlook": Right.CONTENT,
    "output": Right.CONTENT,
    "output_files": Right.CONTENT,
    "plan": Right.CONTENT,
    "report_faults": Right.CONTENT,
    "report_nodes": Right.CONTENT,
    "report_usage": Right.CONTENT,
    "report_usage_jobs": Right.CONTENT,
    "support": Right.CONTENT,
    "usage": Right.CONTENT,
    "usage_agreement": Right.CONTENT,
    "cancel": Right.STOP,
    "cancel_array": Right.STOP,
    "halt": Right.STOP,
    "halt_array": Right.STOP,
    "ffdl_delete_model": Right.STOP,
    "ffdl_patch_model": Right.STOP,
    "attach": Right.CHANGE,
    "ffdl_create_model": Right.CHANGE,
    "attach_stream": Right.CHANGE,
    "drill": Right.CHANGE,
    "has_archive": Right.CHANGE,
    "put_archive": Right.CHANGE,
    "remove": Right.CHANGE,
    "remove_secret": Right.CHANGE,
    "resume": Right.CHANGE,
    "scaler_pause": Right.CHANGE,
    "scaler_resume": Right.CHANGE,
    "set_secret": Right.CHANGE,
    "submit": Right.CHANGE,
    "login": Right.LOGIN,
    "trusted_login": Right.LOGIN,
    "create_token": Right.TOKENS,
    "list_tokens": Right.TOKENS,
    "revoke_token": Right.TOKENS,
}
"""The right that each operation needs."""

_LOCAL = "local"

_OF_ROLE: Mapping[Role, frozenset[Right]] = {
    Role.OWNER: frozenset(Right),
    Role.TOKEN: frozenset({Right.IDENTITY}),
    Role.HUB: frozenset({Right.LOGIN}),
    Role.OPERATOR: frozenset({Right.IDENTITY, Right.STATES, Right.STOP}),
    Role.AUDITOR: frozenset({Right.IDENTITY, Right.STATES}),
}
_OF_SCOPE: Mapping[Scope, frozenset[Right]] = {
    Scope.READ: frozenset({Right.STATES, Right.CONTENT}),
    Scope.WRITE: frozenset({Right.STATES, Right.STOP, Right.CHANGE}),
    Scope.TOKENS: frozenset({Right.TOKENS}),
}


def rights_of(caller: Caller) -> frozenset[Right]:
    """Return the rights of a caller: those of the role, and of the token's scopes."""
    return _OF_ROLE[caller.role].union(*(_OF_SCOPE[scope] for scope in caller.scopes))


def may(caller: Caller, operation: str) -> bool:
    """Return whether the caller may do the operation."""
    return OPERATIONS.get(operation) in rights_of(caller)


def refuse_unless_allowed(caller: Caller, operation: str) -> None:
    """Raise :class:`Refused` (403) if the caller may not do the operation."""
    if may(caller, operation):
        return
    right = OPERATIONS.get(operation)
    needed = f"it needs the right {right}" if right else "no right permits it"
    given = " or ".join(scope.value for scope in Scope if right in _OF_SCOPE[scope])
    is_token = caller.role is Role.TOKEN and given
    cure = f"use a token with the scope {given}" if is_token else "ask the owner of the daemon, who has the right"
    if right is Right.TOKENS and is_token:
        cure = "use the login of a login node (ffdl login without --token), or the hub's host"
    what = f"token {caller.token_id}" if caller.role is Role.TOKEN else f"{caller.role} {caller.uid}"
    problem = Problem("C101", f"{what} may not do {operation}: {needed}", ExitCode.NOT_ALLOWED, cure)
    raise Refused(problem, 403)


def refuse_local_backend(caller: Caller, backend: str) -> None:
    """Raise :class:`Refused` (403) if the caller has a token and would start programs on the daemon's own host. Only
    users with a login on that host may do that."""
    if caller.role is Role.TOKEN and backend == _LOCAL:
        what = f"token {caller.token_id} may not start jobs of the backend {_LOCAL}: they run on the hub's host"
        cure = "use another backend, such as --backend slurm"
        raise Refused(Problem("C101", what, ExitCode.NOT_ALLOWED, cure), 403)


def without_content(caller: Caller, jobs: Iterable[JobView]) -> tuple[JobView, ...]:
    """Return the jobs as the caller may see them: log lines that they quote need the right to content."""
    if Right.CONTENT in rights_of(caller):
        return tuple(jobs)
    return tuple(
        replace(job, log_tail=(), incidents=tuple(replace(one, evidence=()) for one in job.incidents)) for job in jobs
    )


def refuse_files_of_host(transfers: Iterable[Transfer]) -> None:
    """Raise :class:`Refused` (403) for stores that the daemon of a tenant may not use, since its members have no rights
    on its host: SSH and other libraries of fsspec, and files with keys or certificates. Directories are volumes of the
    cluster."""
    for one in transfers:
        if one.store.kind is StoreKind.FSSPEC or FILES & one.store.options.keys():
            what = (
                "fsspec stores and ca_file are not allowed for tenants without accounts: they can read files on the "
                "hub's host"
            )
            cure = "use s3, gcs, swift or http, without ca_file; or a volume of the cluster"
            raise Refused(Problem("C101", what, ExitCode.NOT_ALLOWED, cure), 403)
