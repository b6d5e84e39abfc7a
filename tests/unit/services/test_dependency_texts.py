"""What a dependency's text says about trainings."""

from __future__ import annotations

import pytest

from ffdl_batch.ports.scheduler import InvalidRequest
from ffdl_batch.services.dependencies import read_dependency

A, B = "training-00000000a", "training-00000000b"


def test_read_dependency_separates_job_conditions_from_scheduler_ids() -> None:
    read = read_dependency(f"afterok:12:{A}:13,after:{B}+5,afterany:{B},singleton,afterany:7+3", {A, B})
    assert [str(one) for one in read.conditions] == [f"afterok:{A}", f"after:{B}+5", f"afterany:{B}"]
    assert read.rest == "afterok:12:13,singleton,afterany:7+3"
    assert not read.any_of


def test_read_dependency_leaves_unknown_jobs_to_scheduler() -> None:
    read = read_dependency(f"afterok:{A},afterok:{B}", {A})
    assert read.rest == f"afterok:{B}"
    assert read_dependency("afterok:1?afterany:2", {A}).rest == "afterok:1?afterany:2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"afterok:{A}?afterok:{B},afterok:{B}", "has both ',' (all of them) and '?' (one is enough)"),
        (f"afterok:{A}?afterok:4711", "afterok:4711 is no training of yours, and other alternatives are"),
        (f"expand:{A}", f"expand cannot be said of {A}"),
        (f"afterok:{A}+5", f"afterok:{A}+5: minutes can be counted from a begin only"),
    ],
)
def test_read_dependency_rejects_unsupported_conditions(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_dependency(text, {A, B})
    assert said in str(refused.value)
    assert [finding.path for finding in refused.value.findings] == ["batch.dependency"]
