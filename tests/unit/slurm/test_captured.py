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


def test_captures_cover_every_slurm_release_of_suites() -> None:
    assert sorted(expected.RELEASES) == sorted(suite.slurm for suite in SUITES.values())


def test_captures_have_every_expected_file_per_release(captured: Path) -> None:
    assert sorted(path.name for path in captured.iterdir()) == sorted(expected.FILES)


def test_squeue_parser_reads_all_captured_job_scenes(captured: Path) -> None:
    expected.check_squeue((captured / "squeue.txt").read_text())


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_squeue_and_sacct_parsers_read_captured_job_ends(captured: Path, command: str) -> None:
    name = "squeue-ended.txt" if command == "squeue" else "sacct.txt"
    expected.check_ended((captured / name).read_text(), command)


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_squeue_and_sacct_parsers_read_captured_jobs_of_one_name(captured: Path, command: str) -> None:
    expected.check_named((captured / f"{command}-named.txt").read_text(), command)


def test_squeue_parser_reads_captured_node_exclusions(captured: Path) -> None:
    expected.check_excluded((captured / "squeue-excluded.txt").read_text())


def test_sinfo_parser_reads_captured_site(captured: Path) -> None:
    expected.check_site((captured / "sinfo.txt").read_text())


def test_version_parser_reads_captured_version(captured: Path, release: str) -> None:
    expected.check_version((captured / "version.txt").read_text(), release)


def test_captured_refusals_and_outages_map_to_expected_errors(captured: Path) -> None:
    answers.check_answers(answers.load(captured / answers.FILE))


def test_captures_contain_no_paths_of_capturing_host(captured: Path) -> None:
    """Paths and names are those of the test cluster."""
    for path in captured.iterdir():
        text = path.read_text()
        assert "/root" not in text and "/proc" not in text, path.name
