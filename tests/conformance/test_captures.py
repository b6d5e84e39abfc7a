"""What this release prints now is read as it must be; with --write-captures it is kept for the unit tests."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.captured import answers as said
from tests.captured import expected
from tests.cluster.rig.suites import Suite
from tests.conformance.refusing import Answers


def test_all_scenes_in_one_listing(texts: Mapping[str, str]) -> None:
    expected.check_squeue(texts["squeue.txt"])


def test_the_ends(texts: Mapping[str, str]) -> None:
    expected.check_ended(texts["squeue-ended.txt"], "squeue")


def test_the_ends_in_the_accounting(texts: Mapping[str, str]) -> None:
    expected.check_ended(texts["sacct.txt"], "sacct")


@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_jobs_of_one_name(texts: Mapping[str, str], command: str) -> None:
    expected.check_named(texts[f"{command}-named.txt"], command)


def test_excluded_nodes(texts: Mapping[str, str]) -> None:
    expected.check_excluded(texts["squeue-excluded.txt"])


def test_the_site(texts: Mapping[str, str]) -> None:
    expected.check_site(texts["sinfo.txt"])


def test_the_version(texts: Mapping[str, str], suite: Suite) -> None:
    expected.check_version(texts["version.txt"], suite.slurm)


def test_what_refusals_and_outages_mean(answers: Answers) -> None:
    said.check_answers(answers)


def test_captures_are_kept_where_that_is_asked_for(
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
