"""The parsers read what every supported release printed; the files are under tests/captured/.

They are made by ``make conformance SUITE=... CONFORMANCE=--write-captures``, which holds the same expectations against
that release itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captured import answers, expected
from tests.cluster.rig.suites import SUITES


@pytest.fixture(params=expected.RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """A release of Slurm."""
    return str(request.param)


@pytest.fixture
def captured(release: str) -> Path:
    """Its files."""
    return expected.directory(release)


def test_every_release_that_can_be_tested_has_its_captures() -> None:
    assert sorted(expected.RELEASES) == sorted(suite.slurm for suite in SUITES.values())


def test_every_release_has_every_file(captured: Path) -> None:
    assert sorted(path.name for path in captured.iterdir()) == sorted(expected.FILES)


def test_all_scenes_in_one_listing(captured: Path) -> None:
    expected.check_squeue((captured / "squeue.txt").read_text())


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_ends(captured: Path, command: str) -> None:
    name = "squeue-ended.txt" if command == "squeue" else "sacct.txt"
    expected.check_ended((captured / name).read_text(), command)


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_jobs_of_one_name(captured: Path, command: str) -> None:
    expected.check_named((captured / f"{command}-named.txt").read_text(), command)


def test_excluded_nodes(captured: Path) -> None:
    expected.check_excluded((captured / "squeue-excluded.txt").read_text())


def test_the_site(captured: Path) -> None:
    expected.check_site((captured / "sinfo.txt").read_text())


def test_the_version(captured: Path, release: str) -> None:
    expected.check_version((captured / "version.txt").read_text(), release)


def test_what_refusals_and_outages_mean(captured: Path) -> None:
    answers.check_answers(answers.load(captured / answers.FILE))


def test_nothing_of_the_machine_that_captured_is_in_the_files(captured: Path) -> None:
    """Paths and names are those of the test cluster."""
    for path in captured.iterdir():
        text = path.read_text()
        assert "/root" not in text and "/proc" not in text, path.name
