"""Refusals as Kubernetes words them: Status objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.fakes.kubernetes.kinds import Kind, Obj


@dataclass(frozen=True, slots=True)
class Cause:
    """What is wrong with one field."""

    field: str
    reason: str
    message: str


def required(field: str, more: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", f"Required value{': ' + more if more else ''}")


def wrong(field: str, value: object, why: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause(field, "FieldValueInvalid", f"Invalid value: {shown}: {why}")


def unsupported(field: str, value: object, allowed: Sequence[str]) -> Cause:
    listed = ", ".join(f'"{one}"' for one in allowed)
    return Cause(field, "FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {listed}')


def forbidden_field(field: str, why: str) -> Cause:
    return Cause(field, "FieldValueForbidden", f"Forbidden: {why}")


class Refusal(Exception):
    """An answer that is an error. `details` without a value are left out."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Obj | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.retry_after = code, message, retry_after
        self.status: Obj = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason, "code": code,
        }  # fmt: skip
        if found := {key: value for key, value in (details or {}).items() if value}:
            self.status["details"] = found


def about(kind: Kind, name: str) -> Obj:
    return {"name": name, "group": kind.group, "kind": kind.plural}


def not_found(kind: Kind, name: str) -> Refusal:
    return Refusal(404, "NotFound", f'{kind.resource} "{name}" not found', details=about(kind, name))


def conflict(kind: Kind, name: str, why: str) -> Refusal:
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return Refusal(409, "Conflict", message, details=about(kind, name))


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> Refusal:
    said = [f"{cause.field}: {cause.message}" for cause in causes]
    listed = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    shown = [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes]
    details, named = {**about(kind, name), "kind": kind.kind, "causes": shown}, f"{kind.kind}.{kind.group}".rstrip(".")
    return Refusal(422, "Invalid", f'{named} "{name}" is invalid: {listed}', details=details)


def forbidden(kind: Kind, name: str, why: str) -> Refusal:
    return Refusal(403, "Forbidden", f'{kind.resource} "{name}" is forbidden: {why}', details=about(kind, name))


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def no_such_path() -> Refusal:
    return Refusal(404, "NotFound", "the server could not find the requested resource")
