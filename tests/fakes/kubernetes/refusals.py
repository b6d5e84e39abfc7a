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


def absent(field: str, value: str) -> Cause:
    return Cause(field, "FieldValueNotFound", f'Not found: "{value}"')


def duplicate(field: str, value: str) -> Cause:
    return Cause(field, "FieldValueDuplicate", f'Duplicate value: "{value}"')


def too_long(field: str, limit: int) -> Cause:
    return Cause(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Obj | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details
        self.retry_after = retry_after

    @property
    def status(self) -> Obj:
        """The Status object."""
        found: Obj = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        }  # fmt: skip
        details = dict(self.details or {})
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        if details:
            found["details"] = details
        return found


def _about(kind: Kind, name: str) -> Obj:
    details = {"name": name, "group": kind.group, "kind": kind.plural}
    return {key: value for key, value in details.items() if value}


def not_found(kind: Kind, name: str) -> Refusal:
    return Refusal(404, "NotFound", f'{kind.resource} "{name}" not found', details=_about(kind, name))


def already_exists(kind: Kind, name: str) -> Refusal:
    return Refusal(409, "AlreadyExists", f'{kind.resource} "{name}" already exists', details=_about(kind, name))


def conflict(kind: Kind, name: str, why: str = "") -> Refusal:
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return Refusal(409, "Conflict", message, details=_about(kind, name))


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> Refusal:
    said = [f"{cause.field}: {cause.message}" for cause in causes]
    listed = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    details = {"name": name, "group": kind.group, "kind": kind.kind}
    details = {key: value for key, value in details.items() if value}
    details["causes"] = [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes]  # type: ignore[assignment]
    return Refusal(422, "Invalid", f'{kind.qualified} "{name}" is invalid: {listed}', details=dict(details))


def forbidden(kind: Kind, name: str, why: str) -> Refusal:
    named = f'{kind.resource} "{name}"' if name else kind.resource
    return Refusal(403, "Forbidden", f"{named} is forbidden: {why}", details=_about(kind, name))


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def expired(message: str) -> Refusal:
    return Refusal(410, "Expired", message)


def unauthorized() -> Refusal:
    return Refusal(401, "Unauthorized", "Unauthorized")


def no_such_path() -> Refusal:
    message = "the server could not find the requested resource"
    return Refusal(404, "NotFound", message, details={})


def not_allowed() -> Refusal:
    return Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media(known: Sequence[str]) -> Refusal:
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(known)}"
    return Refusal(415, "UnsupportedMediaType", message)


def too_many(retry_after: int | None) -> Refusal:
    message = "the server has received too many requests and has asked us to try again later"
    return Refusal(429, "TooManyRequests", message, retry_after=retry_after)
