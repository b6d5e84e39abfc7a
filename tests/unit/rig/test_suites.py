"""The table of suites: what each takes from where, and what that changes in recipes and configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.rig import __main__ as command_line
from tests.cluster.rig import record, site
from tests.cluster.rig.errors import Exit, RigError
from tests.cluster.rig.record import Blueprint, Record
from tests.cluster.rig.rootfs import Recipe
from tests.cluster.rig.suites import APPTAINER_VARIABLE, SUITES, Supply, suite_named


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks for another Apptainer."""
    monkeypatch.delenv(APPTAINER_VARIABLE, raising=False)


def test_suites_cover_each_supported_slurm_release_once() -> None:
    assert {name: suite.slurm for name, suite in SUITES.items()} == {
        "sid": "26.05",
        "trixie": "24.11",
        "bookworm": "22.05",
        "bullseye": "20.11",
    }


def test_suite_named_rejects_unknown_suite_and_lists_known_ones() -> None:
    with pytest.raises(RigError, match="unknown suite 'buster'; known: sid, trixie, bookworm, bullseye"):
        suite_named("buster")


def test_suites_do_not_install_carried_apptainer_as_package() -> None:
    recipes = {name: Recipe.of(name).apptainer_suite for name in SUITES}
    assert recipes == {"sid": "sid", "trixie": "sid", "bookworm": None, "bullseye": None}
    assert [name for name in SUITES if suite_named(name).carries] == ["bookworm", "bullseye"]


@pytest.mark.parametrize(
    ("named", "supply", "package"), [("none", Supply.NONE, None), ("forky", Supply.PACKAGE, "forky")]
)
def test_suite_apptainer_can_be_overridden_by_environment(
    monkeypatch: pytest.MonkeyPatch, named: str, supply: Supply, package: str | None
) -> None:
    monkeypatch.setenv(APPTAINER_VARIABLE, named)
    assert (suite_named("bookworm").apptainer, Recipe.of("bookworm").apptainer_suite) == (supply, package)
    assert not suite_named("bookworm").carries


@pytest.mark.parametrize("name", SUITES)
def test_slurm_conf_contains_requeue_lines_of_its_suite(tmp_path: Path, name: str) -> None:
    """Only 25.11 and newer have a delay after a requeue of its own; older ones take a credential's life."""
    suite = SUITES[name]
    options = site.SiteOptions(Path(__file__).resolve().parents[3], suite, f"{suite.slurm}.1", True, True, {})
    site.write_slurm(tmp_path, options, 0)
    text = "".join(path.read_text() for path in (tmp_path / "slurm").rglob("*.conf"))
    assert ("AuthInfo=cred_expire=20" in text, "requeue_delay=2" in text) == (name != "sid", name == "sid")


def test_up_command_rejects_running_cluster_of_another_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "RUN_DIR", tmp_path)
    plan = Blueprint("sid", (), "/src", "26.05.5", True, True, {})
    record.write(Record("kept", tmp_path, None, True, plan))
    assert command_line.main(["--id", "kept", "up", "--suite", "bookworm"]) == Exit.TEMPORARY
    assert "is up with suite sid, not bookworm" in capsys.readouterr().err
