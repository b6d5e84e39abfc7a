"""What the adapter says of its site without asking a node: levels of the network, whatever the daemon's host has."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.domain.spec import NetworkLevel
from ffdl_batch.ports.registry import AdapterContext
from ffdl_slurm.adapter import SlurmScheduler
from ffdl_slurm.gateway import SiteShape
from ffdl_slurm.gateway_cli import CommandLineGateway
from ffdl_slurm.parsers import SiteConfig
from ffdl_slurm.settings import SlurmSettings


class Site(CommandLineGateway):
    """Only says what it is."""

    def describe_site(self) -> SiteShape:
        return SiteShape((), (), "26.05.5", SiteConfig(1001, 300, 30))


@pytest.mark.parametrize("has_apptainer", [True, False])
def test_slurm_probe_offers_network_level_none_without_local_apptainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_apptainer: bool
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    if has_apptainer:
        (tmp_path / "bin/apptainer").write_text("#!/bin/sh\n")
        (tmp_path / "bin/apptainer").chmod(0o755)
    context = AdapterContext(str(tmp_path / "jobs"), "alice", 1000)
    facts = SlurmScheduler(SlurmSettings(), context, Site(1.0)).probe()
    assert facts.network_levels == {NetworkLevel.HOST, NetworkLevel.NONE}
    assert facts.warnings == ()
