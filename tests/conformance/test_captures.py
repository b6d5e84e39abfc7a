"""What this release prints now is read as it must be; with --write-captures it is kept for the unit tests."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.captured import answers as said
from tests.captured import expected
from tests.cluster.rig.suites import Suite
from tests.conformance.refusing import Answers


def test_squeue_parser_reads_all_scenes_of_current_listing(texts: Mapping[str, str]) -> None:
    expected.check_squeue(texts["squeue.txt"])


def test_squeue_parser_reads_end_causes_of_ended_jobs(texts: Mapping[str, str]) -> None:
    expected.check_ended(texts["squeue-ended.txt"], "squeue")


def test_sacct_parser_reads_end_causes_of_ended_jobs(texts: Mapping[str, str]) -> None:
    expected.check_ended(texts["sacct.txt"], "sacct")


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_parser_reads_listing_requested_by_job_name(texts: Mapping[str, str], command: str) -> None:
    expected.check_named(texts[f"{command}-named.txt"], command)


def test_squeue_parser_reads_excluded_nodes(texts: Mapping[str, str]) -> None:
    expected.check_excluded(texts["squeue-excluded.txt"])


def test_sinfo_parser_reads_partitions_and_nodes(texts: Mapping[str, str]) -> None:
    expected.check_site(texts["sinfo.txt"])


def test_version_parser_reads_slurm_release(texts: Mapping[str, str], suite: Suite) -> None:
    expected.check_version(texts["version.txt"], suite.slurm)


def test_adapter_classifies_slurm_rejections_and_outages(answers: Answers) -> None:
    said.check_answers(answers)


def test_captures_cover_expected_files_and_are_written_on_request(
    pytestconfig: pytest.Config, texts: Mapping[str, str], answers: Answers, suite: Suite
) -> None:
    """The files have the names that the unit tests look for; and they are written only then."""
    files = {**texts, said.FILE: said.dump(answers)}
    assert set(files) == set(expected.FILES)
    if pytestconfig.getoption("--write-captures"):
        directory = expected.directory(suite.slurm)
        directory.mkdir(exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
