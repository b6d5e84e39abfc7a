"""Open the hub's database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.ports.capabilities import HasAccounting
from ffdl_batch.site.hub.admission import Admission
from ffdl_batch.site.hub.gpu_hours import GpuHours
from ffdl_batch.site.hub.incident_index import IncidentIndex
from ffdl_batch.site.hub.schema import create_tables
from ffdl_batch.site.hub.tenants import Tenants
from ffdl_batch.site.hub.tokens.token_index import TokenIndex, account_name
from ffdl_batch.store.database import Database


@dataclass(frozen=True, slots=True)
class HubStore:
    """The parts of the hub's database."""

    tokens: TokenIndex
    tenants: Tenants
    admission: Admission
    gpu_hours: GpuHours
    incidents: IncidentIndex


def open_hub_store(
    database: Database,
    account: Callable[[int], str] = account_name,
    accounting: HasAccounting | None = None,
    daemons: Mapping[str, int] = MappingProxyType({}),
) -> HubStore:
    """Create missing tables, and return the parts. `account` names the account of a uid, "" if there is none;
    `accounting` is the scheduler's; `daemons` are the uids of the daemons of tenants. Raises StoreError."""
    create_tables(database)
    tenants = Tenants(database, account, daemons)
    tenants.link_daemons()
    return HubStore(
        TokenIndex(database, account),
        tenants,
        Admission(database, account),
        GpuHours(database, accounting),
        IncidentIndex(database, account),
    )
