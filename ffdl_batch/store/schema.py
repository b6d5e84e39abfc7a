"""The tables. Every change needs a migration; a test compares both on both databases.

Ids are text. Times are seconds since the epoch (UTC). The lease columns of `jobs` are not part of a job: changing them
does not change `revision`.
"""

from __future__ import annotations

import re

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

_UNSTORABLE = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a([0-9a-f]{4})")


class AnyText(TypeDecorator[str]):
    """Text that stores every Python string.

    PostgreSQL stores no NUL, and UTF-8 has no form for lone surrogates, which stand for bytes of file names that are
    not UTF-8 (PEP 383). These, and SUBSTITUTE itself, are stored as SUBSTITUTE and four hex digits.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        """Return the text to store."""
        if value is None or (value.isascii() and "\x00" not in value and "\x1a" not in value):
            return value
        return _UNSTORABLE.sub(lambda match: f"\x1a{ord(match[0]):04x}", value)

    def process_result_value(self, value: str | None, _dialect: Dialect) -> str | None:
        """Return the original text."""
        if value is None or "\x1a" not in value:
            return value
        return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)


METADATA = MetaData()

JOBS = Table(
    "jobs",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("uid", BigInteger, nullable=False),
    # `user` alone is a function in PostgreSQL: a query by hand would silently get the session's user.
    Column("user_name", AnyText, key="user", nullable=False),
    Column("name", AnyText, nullable=False),
    Column("spec", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("requested_action", Text, nullable=False),
    Column("backend", AnyText, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("native_id", AnyText, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("error_code", AnyText, nullable=False),
    Column("message", AnyText, nullable=False),
    Column("exit_code", Integer),
    Column("exit_signal", Integer),
    Column("pending_reason", AnyText, nullable=False),
    Column("nodes", AnyText, nullable=False),
    Column("network", AnyText, nullable=False),
    Column("results", AnyText, nullable=False),
    Column("model_digest", AnyText, nullable=False),
    Column("uncertain_since", Double),
    Column("warnings", Text, nullable=False),
    Column("log_tail", Text, nullable=False),
    Column("overrides", Text, nullable=False, server_default="{}"),
    Column("spent", Text, nullable=False, server_default="{}"),
    Column("removed_at", Double),
    Column("submit_key", AnyText),
    Column("array_id", Text, nullable=False, server_default=text("''")),
    Column("array_index", Integer, nullable=False, server_default="0"),
    Column("lease_owner", AnyText, nullable=False),
    Column("lease_token", Text, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("next_try_at", Double, nullable=False),
    Column("deploy_tries", Integer, nullable=False),
    UniqueConstraint("uid", "submit_key", name="uq_jobs_uid_submit_key"),
    Index("ix_jobs_uid_submitted_at", "uid", "submitted_at"),
    Index("ix_jobs_submitted_at", "submitted_at"),
    Index("ix_jobs_state_next_try_at", "state", "next_try_at"),
    Index("ix_jobs_array_id_array_index", "array_id", "array_index"),
)

ATTEMPTS = Table(
    "attempts",
    METADATA,
    Column("job_id", Text, ForeignKey("jobs.id", name="fk_attempts_job_id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("token", Text, nullable=False),
    Column("backend", AnyText, nullable=False),
    Column("native_id", AnyText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("submitted_at", Double),
    Column("ended_at", Double),
    Column("outcome_code", AnyText, nullable=False),
    Column("network", AnyText, nullable=False),
    Column("nodes", AnyText, nullable=False),
    Column("interruption", AnyText, nullable=False, server_default=text("''")),
    Column("checkpoint", Text, nullable=False, server_default="{}"),
    Column("gpu_seconds", Double, nullable=False, server_default="0"),
    Column("upload_pending", Integer, nullable=False, server_default="0"),
    Column("simulated", Integer, nullable=False, server_default="0"),
    Column("learners", Integer, nullable=False, server_default="0"),
    Column("global_batch", Integer),
    Column("gpus", Double),
    Column("resizes", Text, nullable=False, server_default="[]"),
    UniqueConstraint("token", name="uq_attempts_token"),
    Index("ix_attempts_upload_pending", "upload_pending"),
)

HISTORY = Table(
    "history",
    METADATA,
    Column("job_id", Text, ForeignKey("jobs.id", name="fk_history_job_id"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("cause", Text, nullable=False),
    Column("message", AnyText, nullable=False),
    Column("error_code", AnyText, nullable=False),
)

INCIDENTS = Table(
    "incidents",
    METADATA,
    Column("job_id", Text, ForeignKey("jobs.id", name="fk_incidents_job_id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("episode", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("noticed_at", Double, nullable=False),
    Column("code", AnyText, nullable=False),
    Column("message", AnyText, nullable=False),
    Column("nodes", AnyText, nullable=False),
    Column("learner", Integer, nullable=False),
    Column("evidence", Text, nullable=False),
    Column("lost_gpu_s", Double, nullable=False),
    PrimaryKeyConstraint("job_id", "attempt", "episode", name="pk_incidents"),
    Index("ix_incidents_noticed_at", "noticed_at"),
    Index("ix_incidents_at", "at"),
)

NOTICES = Table(
    "notices",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id", name="fk_notices_job_id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("episode", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("address", AnyText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("next_try_at", Double, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("sent_at", Double),
    Column("failure", AnyText, nullable=False),
    UniqueConstraint("job_id", "attempt", "episode", "channel", "address", name="uq_notices_of"),
    Index("ix_notices_sent_at_next_try_at", "sent_at", "next_try_at"),
)

LEASES = Table(
    "leases",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("owner", AnyText, nullable=False),
    Column("token", Text, nullable=False),
    Column("until", Double, nullable=False),
)

TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", AnyText, nullable=False),
    Column("digest", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("revoked_at", Double),
)

ELASTIC_SIZES = Table(
    "elastic_sizes",
    METADATA,
    Column("job_id", Text, ForeignKey("jobs.id", name="fk_elastic_sizes_job_id"), primary_key=True),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("learners", Integer, nullable=False),
    Column("global_batch", Integer, nullable=False),
    Column("requested_at", Double, nullable=False),
    Column("restart_s", Double),
)

ELASTIC_DECISIONS = Table(
    "elastic_decisions",
    METADATA,
    Column("pool", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("inputs", Text, nullable=False),
    Column("targets", Text, nullable=False),
    PrimaryKeyConstraint("pool", "at", name="pk_elastic_decisions"),
)

ELASTIC_POOLS = Table(
    "elastic_pools",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("paused_at", Double, nullable=False),
)
