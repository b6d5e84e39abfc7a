"""What Slurm shows of the user's name of a job: its comment, and %x in file names. The job's name stays the token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.job.spec import BatchOptions
from ffdl_batch.domain.launch.launch_file import TEMPLATE
from ffdl_slurm.planning.launch_plan import make_plan
from ffdl_slurm.planning.sbatch_options import fill_name
from ffdl_slurm.sbatch_script import parse_options
from ffdl_slurm.settings import SlurmSettings
from tests.unit.slurm.test_arrays import plan_chunk
from tests.unit.slurm.test_plan import JOB, request


def options_of(script: str) -> dict[str, str | None]:
    return {option.name: option.value for option in parse_options(script)}


@pytest.mark.parametrize("token", [f"{JOB}-1", f"{JOB}-{TEMPLATE}"])
def test_script_has_token_as_name_and_users_name_as_comment(token: str) -> None:
    wanted = request(batch=BatchOptions(output="%x-%j.out"), token=Token(token))
    wanted = replace(wanted, spec=replace(wanted.spec, name='it\'s "my" 50 % run'))
    found = options_of(make_plan(wanted, SlurmSettings()).script)
    assert (found["job-name"], found["comment"]) == (token, 'it\'s "my" 50 % run')
    assert found["output"] == '/home/alice/it\'s "my" 50 %% run-%j.out'


def test_script_keeps_comment_of_user() -> None:
    assert (
        options_of(make_plan(request(batch=BatchOptions(comment="mine")), SlurmSettings()).script)["comment"] == "mine"
    )


def test_script_of_native_array_has_name_of_array(tmp_path: Path) -> None:
    planned = plan_chunk(tmp_path, BatchOptions(array="0-3", output="%x-%a.out"))
    assert planned is not None
    found = options_of(planned.script)
    assert (found["job-name"], found["comment"]) == ("array-0a1b2c3d4-3", "digits")
    assert str(found["output"]).endswith("/digits-%a.out")


@pytest.mark.parametrize(
    ("pattern", "name", "filled"),
    [
        ("%x.out", "digits", "digits.out"),
        ("%8x/%j", "digits", "digits/%j"),
        ("%%x", "digits", "%%x"),
        ("%%%x", "digits", "%%digits"),
        ("%x", "a/../b", "a_.._b"),
        ("%x", "100%j", "100%%j"),
        ("back\\slash-%x", "digits", "back\\slash-%x"),
        ("%x", "back\\slash", "%x"),
    ],
)
def test_fill_name_replaces_only_name_pattern_in_file_name(pattern: str, name: str, filled: str) -> None:
    assert fill_name(pattern, name) == filled
