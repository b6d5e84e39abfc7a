"""What the adapter finds out about its site: times of slurm.conf, which it doubts in the log, and network levels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.spec import NetworkLevel
from ffdl_batch.ports.registry import AdapterContext
from ffdl_slurm.adapter import SlurmScheduler
from ffdl_slurm.gateway import SiteShape
from ffdl_slurm.gateway_cli import CommandLineGateway
from ffdl_slurm.parsers import Garbled, SiteConfig, parse_config
from ffdl_slurm.settings import SlurmSettings, doubt_times

CONFIG = (
    "Configuration data as of now\nKillWait                = 30 sec\nMaxArraySize            = 1001\n"
    "SlurmdTimeout           = 300 sec\nX = 300 sec"
)


def test_config_parser_reads_max_array_size_slurmd_timeout_and_kill_wait() -> None:
    assert parse_config(CONFIG) == SiteConfig(1001, slurmd_timeout_s=300, kill_wait_s=30)
    unsaid = CONFIG.replace("SlurmdTimeout", "XSlurmdTimeout").replace("30 sec", "soon")
    assert parse_config(unsaid) == SiteConfig(1001, slurmd_timeout_s=None, kill_wait_s=None)
    with pytest.raises(Garbled, match="MaxArraySize"):
        parse_config("slurm_load_ctl_conf error: Zero Bytes were transmitted or received")


@pytest.mark.parametrize(
    ("slurmd_timeout_s", "kill_wait_s", "doubted"),
    [
        (300, 30, []),
        (121, 60, []),
        (0, 30, []),
        (None, None, []),
        (120, 30, ["SlurmdTimeout (120 s)"]),
        (30, 5, ["SlurmdTimeout (30 s)", "KillWait (5 s)"]),
    ],
)
def test_doubt_times_reports_slurm_times_that_conflict_with_settings(
    slurmd_timeout_s: int | None, kill_wait_s: int | None, doubted: list[str]
) -> None:
    found = doubt_times(SlurmSettings(), slurmd_timeout_s, kill_wait_s)
    assert [part in text for part, text in zip(doubted, found, strict=True)] == [True] * len(doubted)


class Site(CommandLineGateway):
    """Reports its shape, and runs no command."""

    shape = SiteShape((), (), "26.05.5", SiteConfig(1001, 30, 30))

    def describe_site(self) -> SiteShape:
        return self.shape


@pytest.fixture
def site() -> Site:
    return Site(1.0)


@pytest.fixture
def scheduler(site: Site, tmp_path: Path) -> SlurmScheduler:
    return SlurmScheduler(SlurmSettings(), AdapterContext(str(tmp_path / "jobs"), "alice", 1000), site)


def test_slurm_probe_logs_conflicting_times_once_per_change(
    site: Site, scheduler: SlurmScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert not any("SlurmdTimeout" in warning for warning in scheduler.probe().warnings)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "holds its next nodes idle" in caplog.messages[0]
    for slurmd_timeout_s in (300, 30):
        site.shape = replace(site.shape, config=SiteConfig(1001, slurmd_timeout_s, 30))
        scheduler.probe()
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("has_apptainer", [True, False])
def test_slurm_probe_offers_network_level_none_without_local_apptainer(
    scheduler: SlurmScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_apptainer: bool
) -> None:
    """Levels do not depend on what the daemon's host has."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    if has_apptainer:
        (tmp_path / "bin/apptainer").write_text("#!/bin/sh\n")
        (tmp_path / "bin/apptainer").chmod(0o755)
    facts = scheduler.probe()
    assert facts.network_levels == {NetworkLevel.HOST, NetworkLevel.NONE}
    assert facts.warnings == ()
