"""The site's metrics, as Prometheus reads them from the hub."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from ffdl_batch.domain.admission import Claim
from ffdl_batch.site.hub.tenants import EACH, WHOLE, LeverKind, Quota
from tests.unit.hub.conftest import Reply, serving_hub

ADA, BOB, CY = 7001, 7002, 7003
ACCOUNT = pwd.getpwuid(os.getuid()).pw_name


def samples(reply: Reply) -> dict[tuple[str, ...], float]:
    """Value by name and labels."""
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *(f"{name}={value}" for name, value in sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }


def test_metrics_have_use_and_quotas_of_each_tenant_and_what_is_stopped(tmp_path: Path) -> None:
    with serving_hub(tmp_path, auditors=[ACCOUNT]) as site:
        store = site.store
        for name, members in {"vision": (ADA, BOB), "speech": (CY,)}.items():
            store.tenants.put(name, None, [])
            for uid in members:
                store.tenants.add_member(name, uid)
        for quota in (Quota(WHOLE, "gpus", 16), Quota(EACH, "jobs", 5), Quota("user7002", "gpus:a100", 2)):
            store.tenants.put_quota("vision", quota)
        store.admission.decide(
            ADA, [Claim("training-1", gpus=4, gpu_type="a100", hours=1), Claim("training-2", gpus=2)]
        )
        store.admission.decide(BOB, [Claim("training-3", gpus=1, gpu_type="a100", hours=1)])
        store.tenants.put_quota("vision", Quota(WHOLE, "gpu-hours/day", 100))  # its use is not known: no accounting
        store.tenants.stop(LeverKind.TENANT, "speech", "oskar", "power")
        site.ask("/none", local=True, token="")
        found = samples(site.ask("/site/metrics", local=True, token=""))
    assert {name: value for name, value in found.items() if name[0] != "ffdl_hub_requests_total"} == {
        ("ffdl_tenant_used", "tenant=speech", "resource=gpus"): 0.0,
        ("ffdl_tenant_used", "tenant=speech", "resource=jobs"): 0.0,
        ("ffdl_tenant_used", "tenant=vision", "resource=gpus"): 7.0,
        ("ffdl_tenant_used", "tenant=vision", "resource=gpus:a100"): 5.0,
        ("ffdl_tenant_used", "tenant=vision", "resource=jobs"): 3.0,
        ("ffdl_tenant_quota", "tenant=vision", "resource=gpus", "member="): 16.0,
        ("ffdl_tenant_quota", "tenant=vision", "resource=gpu-hours/day", "member="): 100.0,
        ("ffdl_tenant_quota", "tenant=vision", "resource=jobs", "member=*"): 5.0,
        ("ffdl_tenant_quota", "tenant=vision", "resource=gpus:a100", "member=user7002"): 2.0,
        ("ffdl_site_stopped", "kind=tenant", "subject=speech"): 1.0,
    }
    assert found["ffdl_hub_requests_total", "method=GET", "status=404"] == 1.0


def test_metrics_are_for_operators_and_auditors(tmp_path: Path) -> None:
    with serving_hub(tmp_path) as site:
        assert site.ask("/site/metrics", local=True, token="").status == 403
        assert site.ask("/site/metrics", token="").status == 401
        assert site.ask("/site/metrics", "POST", local=True, token="").status == 404
