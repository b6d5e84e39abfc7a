"""Times of slurm.conf that do not fit the settings are told, to the log alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.ports.registry import AdapterContext
from ffdl_slurm.adapter import SlurmScheduler
from ffdl_slurm.gateway import SiteShape
from ffdl_slurm.gateway_cli import CommandLineGateway
from ffdl_slurm.parsers import SiteConfig, parse_config
from ffdl_slurm.settings import SlurmSettings, doubt_times

CONFIG = (
    "Configuration data as of now\nKillWait                = 30 sec\nMaxArraySize            = 1001\n"
    "SlurmdTimeout           = 300 sec\nX = 300 sec"
)


def test_config_parser_reads_slurmd_timeout_and_kill_wait() -> None:
    assert parse_config(CONFIG) == SiteConfig(1001, slurmd_timeout_s=300, kill_wait_s=30)
    unsaid = CONFIG.replace("SlurmdTimeout", "XSlurmdTimeout").replace("30 sec", "soon")
    assert parse_config(unsaid) == SiteConfig(1001, slurmd_timeout_s=None, kill_wait_s=None)


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
    """Only says what it is."""

    shape = SiteShape((), (), "26.05.5", SiteConfig(1001, 30, 30))

    def describe_site(self) -> SiteShape:
        return self.shape


def test_slurm_probe_logs_conflicting_times_once_per_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(1.0)
    scheduler = SlurmScheduler(SlurmSettings(), AdapterContext(str(tmp_path), "alice", 1000), site)
    for _ in range(3):
        assert not any("SlurmdTimeout" in warning for warning in scheduler.probe().warnings)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "holds its next nodes idle" in caplog.messages[0]
    site.shape = replace(site.shape, config=SiteConfig(1001, 300, 30))
    scheduler.probe()
    site.shape = replace(site.shape, config=SiteConfig(1001, 30, 30))
    scheduler.probe()
    assert len(caplog.messages) == 2
