"""What stores have answered, as findings."""

from __future__ import annotations

from ffdl_batch.domain.data.staging_protocol import Direction, FaultClass
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.services.data.data_store_checks import Answer, StoreFailure, findings_of

S3 = StoreAddress(StoreKind.S3, "http://s3", container="sets")


def told(kind: FaultClass, message: str = "why", store: int = 0, direction: Direction = Direction.IN) -> StoreFailure:
    return StoreFailure(store, direction, S3, Answer(kind, message))


def found(*wrong: StoreFailure, later: bool = False, runs_here: bool = True) -> list[Finding]:
    return list(findings_of(wrong, later=later, runs_here=runs_here))


def test_findings_of_reports_missing_library_as_error_only_on_this_machine() -> None:
    """The nodes run this very installation, or one that may have it."""
    (here,) = found(told(FaultClass.LIBRARY, "the extra [s3]"))
    assert (here.severity, here.code, here.path) == (Severity.ERROR, "S306", "data_stores[0].type")
    (there,) = found(told(FaultClass.LIBRARY, "the extra [s3]"), runs_here=False)
    assert there.severity is Severity.WARNING


def test_findings_of_reports_each_fault_once_and_groups_unreachable_stores() -> None:
    silent = FaultClass.NETWORK
    both = found(told(silent), told(silent, "other words", store=2), told(silent, direction=Direction.OUT))
    assert [one.path for one in both] == ["data_stores[0].connection.auth_url"]
    assert both[0].severity is Severity.WARNING
    assert both[0].message == "the store of data and results could not be used from this host (S302): why"
    missing = found(told(FaultClass.MISSING, "no a"), told(FaultClass.MISSING, "no b", direction=Direction.OUT))
    assert [one.path for one in missing] == [
        "data_stores[0].training_data.container", "data_stores[0].training_results.container",
    ]  # fmt: skip
    assert {(one.severity, one.code) for one in missing} == {(Severity.ERROR, "C103")}


def test_findings_of_sets_severity_and_message_by_fault_class() -> None:
    (full,) = found(told(FaultClass.FULL, "9 GB are to come, and 1 GB are free in /scratch"))
    assert full.message == "there is no space for the data now (S302): 9 GB are to come, and 1 GB are free in /scratch"
    assert (full.severity, full.path) == (Severity.WARNING, "data_stores[0].training_data.container")
    (later,) = found(told(FaultClass.MISSING), later=True)
    assert (later.severity, later.code) == (Severity.WARNING, "C103")
    (wrong,) = found(told(FaultClass.CREDENTIALS), later=True)
    assert wrong.severity is Severity.ERROR
    (warning,) = found(told(FaultClass.REFUSED, direction=Direction.OUT))
    assert (warning.severity, warning.code, warning.path) == (Severity.WARNING, "S303", "data_stores[0].connection")


def test_findings_of_suggests_cure_for_missing_bucket_by_direction() -> None:
    """It is made; with data beside results in it, these have to be put there."""
    missing = FaultClass.MISSING
    (results,) = found(told(missing, direction=Direction.OUT))
    assert results.cure == "correct the container, or make it"
    (both,) = found(told(missing), told(missing, direction=Direction.OUT))
    assert both.cure is not None and both.cure.endswith("put the data there (ffdl data put)")
