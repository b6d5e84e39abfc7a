"""What the adapter finds out about its site: times of slurm.conf, which it doubts in the log, and network levels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.backend_facts import NodeShape
from ffdl_batch.domain.job.spec import NetworkLevel
from ffdl_batch.plugins import AdapterContext
from ffdl_slurm.adapter import SlurmScheduler
from ffdl_slurm.gateways.cli_gateway import CommandLineGateway
from ffdl_slurm.gateways.gateway import SiteShape
from ffdl_slurm.observing.accounted_runs import UseRecord
from ffdl_slurm.observing.parsers import Garbled, SiteConfig, parse_config
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


HEADER = "PARTITION|TIMELIMIT|CPUS|MEMORY|GRES|AVAIL_FEATURES|NODELIST"


@pytest.mark.parametrize(
    ("scontrol", "lack"),
    [
        ("echo 'slurm_load_ctl_conf error: Access/permission denied' >&2; exit 1", "Access/permission denied"),
        ("echo 'ask the help desk'", "no MaxArraySize but 'ask the help desk'"),
        ("chmod", "Permission denied"),
    ],
)
def test_slurm_probe_succeeds_without_configuration_and_reports_what_is_missing_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, scontrol: str, lack: str
) -> None:
    for name, lines in {
        "sinfo": f"echo Welcome; echo '{HEADER}'; echo 'main*|infinite|8|4000|(null)|(null)|n1'; echo Good bye",
        "scontrol": scontrol,
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o644 if lines == "chmod" else 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    gateway = CommandLineGateway(60.0)
    scheduler = SlurmScheduler(SlurmSettings(), AdapterContext(str(tmp_path / "jobs"), "alice", 1000), gateway)
    facts = [scheduler.probe() for _ in range(2)][-1]
    assert (facts.max_array_size, [node.name for node in facts.nodes]) == (1001, ["n1"])
    (said,) = facts.lacks
    assert lack in said and caplog.messages == [said]


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


@pytest.mark.parametrize(("shards", "gpu_s", "warnings"), [((8, 8), [225.0], 0), ((4, 8), [200.0], 1)])
def test_gpu_hours_of_shares_that_differ_between_nodes_are_reported_as_uncounted(
    site: Site,
    scheduler: SlurmScheduler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    shards: tuple[int, int],
    gpu_s: list[float],
    warnings: int,
) -> None:
    nodes = [NodeShape(f"n{count}", 8, 1, {"": 2}, gres={"shard": 2 * count}) for count in shards]
    used = UseRecord("ada", "vis", 2, {"gres/gpu": 200.0, "gres/shard": 200.0})
    monkeypatch.setattr(site, "account_for_all_users", lambda *_: [used])
    monkeypatch.setattr(site, "query", lambda *_: (nodes,))
    assert [one.gpu_s for one in scheduler.accounted_uses(0.0, 1.0) or ()] == gpu_s
    assert len(caplog.messages) == warnings
    assert all("jobs that used shard are not counted" in one for one in caplog.messages)


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
