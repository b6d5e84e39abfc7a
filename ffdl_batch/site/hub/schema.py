"""The tables of the hub. `create_tables` creates those that do not exist."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, ForeignKey, MetaData, Table, Text

from ffdl_batch.store.database import Database

METADATA = MetaData()
TOKENS = Table(
    "token_owners",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("uid", BigInteger, nullable=False, index=True),
    Column("account", Text, nullable=False),
    Column("registered_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
)
TENANTS = Table(
    "tenants",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("weight", Double, nullable=False),
)


def _tenant_column(*, primary_key: bool = False) -> Column[str]:
    return Column(
        "tenant", Text, ForeignKey("tenants.name", ondelete="CASCADE"), primary_key=primary_key, nullable=False
    )


ACCOUNTS = Table(
    "tenant_accounts",
    METADATA,
    Column("account", Text, primary_key=True),
    _tenant_column(),
)
"""The scheduler's accounts of tenants."""
MEMBERS = Table(
    "tenant_members",
    METADATA,
    _tenant_column(primary_key=True),
    Column("uid", BigInteger, primary_key=True, index=True),
    Column("name", Text, nullable=False),
)
GUESTS = Table(
    "tenant_guests",
    METADATA,
    Column("name", Text, primary_key=True),
    _tenant_column(),
)
"""Members without an account, who log in by the site's OpenID provider."""
QUOTAS = Table(
    "tenant_quotas",
    METADATA,
    _tenant_column(primary_key=True),
    Column("member", Text, primary_key=True),
    Column("resource", Text, primary_key=True),
    Column("amount", Double, nullable=False),
)
ADMISSIONS = Table(
    "admissions",
    METADATA,
    Column("uid", BigInteger, primary_key=True),
    Column("job", Text, primary_key=True),
    Column("tenant", Text, nullable=False, index=True),
    Column("gpus", Double, nullable=False),
    Column("gpu_type", Text, nullable=False),
    Column("hours", Double, nullable=False),
    Column("admitted_at", Double, nullable=False),
)
"""Admitted jobs that have not ended. `tenant` is empty if the job belongs to none; `hours` is the time limit."""
USES = Table(
    "gpu_uses",
    METADATA,
    Column("day", Text, primary_key=True),
    Column("user", Text, primary_key=True),
    Column("account", Text, primary_key=True),
    Column("gpu_s", Double, nullable=False),
)
"""GPU-seconds of each day (YYYY-MM-DD, in local time), from the scheduler's accounting."""
DAYS = Table(
    "gpu_use_days",
    METADATA,
    Column("day", Text, primary_key=True),
    Column("read_at", Double, nullable=False),
)
INCIDENTS = Table(
    "reported_incidents",
    METADATA,
    Column("uid", BigInteger, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("received_at", Double, nullable=False, index=True),
    Column("noticed_at", Double, nullable=False),
    Column("at", Double, nullable=False),
    Column("origin", Text, nullable=False),
    Column("lost_gpu_hours", Double, nullable=False),
    Column("row", Text, nullable=False),
)
"""Incidents of all users. `row` is an :class:`~ffdl_batch.domain.incidents.incident.IncidentRow` as JSON, noticed at
`received_at`; the column `noticed_at` is that of the user's daemon."""
LEVERS = Table(
    "levers",
    METADATA,
    Column("kind", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("set_by", Text, nullable=False),
    Column("set_at", Double, nullable=False),
    Column("why", Text, nullable=False),
)
"""What operators have stopped: `kind` is a :class:`~ffdl_batch.site.hub.tenants.LeverKind`, and `subject` a name."""


def create_tables(database: Database) -> None:
    """Create the tables that do not exist. Raises StoreError."""
    with database.writing(begin="EXCLUSIVE") as connection:
        METADATA.create_all(connection)
