"""Tokens of a cluster that the hub requests for the daemons of tenants without accounts."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import field
from typing import Any, NoReturn

import pytest

from ffdl_batch.domain.scheduler_errors import SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.services.refusals import Refused
from ffdl_batch.site.hub.settings import HubSettings
from ffdl_batch.site.hub.tokens import cluster_tokens
from ffdl_batch.site.hub.tokens.cluster_tokens import LEAST_S, LIFETIME_S, ClusterTokens

VISION, SPEECH = 70001, 70002


@dataclass
class Cluster:
    """A cluster that numbers the tokens that it issues."""

    lifetime_s: float = LIFETIME_S
    users: list[str] = field(default_factory=list)
    answers: threading.Event = field(default_factory=threading.Event)
    why: str = ""

    def daemon_token(self, lifetime_s: int) -> tuple[str, float]:
        assert self.answers.wait(60)
        if self.why:
            raise SchedulerUnreachable(self.why)
        return f"token-{len(self.users)}", time.time() + self.lifetime_s

    def refuse(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("the hub requests tokens, and nothing else")

    tenant_objects = permissions = create_tenant = advise = refuse


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    found.answers.set()

    def create(name: str, table: Mapping[str, object], context: Any) -> Cluster:
        assert (name, table["kubeconfig"]) == ("kubernetes", "/etc/ffdl/hub/kubeconfig")
        found.users.append(context.user)
        return found

    monkeypatch.setattr(cluster_tokens, "create_adapter", create)
    return found


def tokens(**tenants: int) -> ClusterTokens:
    return ClusterTokens(HubSettings(tenants=tenants, kubeconfig="/etc/ffdl/hub/kubeconfig"))


def test_token_is_requested_once_and_given_again_while_it_is_valid_long_enough(cluster: Cluster) -> None:
    async def run() -> list[str]:
        issued = tokens(vision=VISION, speech=SPEECH)
        together = await asyncio.gather(*(issued.issue(uid) for uid in (VISION, VISION, SPEECH, VISION)))
        return [one["token"] for one in (*together, await issued.issue(VISION))]

    found = asyncio.run(run())
    assert sorted(cluster.users) == ["speech", "vision"]
    assert len({found[0], found[1], found[3], found[4]}) == 1


def test_token_that_expires_soon_is_requested_again(cluster: Cluster) -> None:
    cluster.lifetime_s = LEAST_S - 1

    async def run() -> list[str]:
        issued = tokens(vision=VISION)
        return [(await issued.issue(VISION))["token"] for _ in range(2)]

    assert asyncio.run(run()) == ["token-1", "token-2"]


def test_cluster_that_hangs_or_refuses_occupies_no_thread_of_others(cluster: Cluster) -> None:
    cluster.answers.clear()
    cluster.why = "the API server does not answer"

    async def run() -> list[Any]:
        issued = tokens(**{f"t{number}": VISION + number for number in range(50)})
        asking = [asyncio.ensure_future(issued.issue(VISION + number)) for number in range(50)]
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 60) == "free"
        cluster.answers.set()
        return list(await asyncio.gather(*asking, return_exceptions=True))

    refusals = asyncio.run(run())
    assert {(type(one), one.status) for one in refusals} == {(Refused, 503)}
    assert "the API server does not answer" in refusals[0].problem.message


@pytest.mark.parametrize(("tenants", "status"), [({"vision": VISION}, 403), ({"own": os.getuid()}, 503)])
def test_no_token_is_issued_for_users_with_accounts(cluster: Cluster, tenants: dict[str, int], status: int) -> None:
    with pytest.raises(Refused) as refused:
        asyncio.run(tokens(**tenants).issue(os.getuid()))
    assert (refused.value.status, cluster.users) == (status, [])
