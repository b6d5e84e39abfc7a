"""Dataclasses to JSON and back, without loss."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.domain.codec import CodecError, from_plain, to_plain
from ffdl_batch.domain.job.job import AttemptEnd, Overrides
from ffdl_batch.domain.job.spec import (
    BatchOptions,
    DataStore,
    Egress,
    EvaluationMetrics,
    Framework,
    JobSpec,
    MetricGroup,
    MetricValue,
    NetworkLevel,
    Resources,
    Role,
    StoreType,
)
from ffdl_batch.domain.job.submission import SubmissionResult
from ffdl_batch.domain.job.views import AttemptView, Problem, Resume
from ffdl_batch.domain.outcome.continuation import Checkpoint, Spent
from ffdl_batch.domain.outcome.controller_events import FinalRecord, GoesOn, Outcome

TEXT = st.text(max_size=20)
SPECS = st.builds(
    JobSpec,
    name=TEXT,
    framework=st.builds(Framework, name=TEXT, version=TEXT, command=TEXT),
    resources=st.builds(Resources, gpus=st.floats(0, 100), gres=st.dictionaries(TEXT, st.integers(0, 9), max_size=2)),
    data_stores=st.lists(
        st.builds(
            DataStore, id=TEXT, type=st.sampled_from(StoreType), effective_type=st.sampled_from(StoreType),
            connection=st.dictionaries(TEXT, TEXT, max_size=3),
        ), max_size=2,
    ).map(tuple),
    batch=st.builds(
        BatchOptions, network=st.sampled_from(NetworkLevel), egress=st.just((Egress("a", 1),)),
        env=st.dictionaries(TEXT, TEXT, max_size=3), roles=st.just({"ps": Role(learners=2, cpus=None)}),
        requeue=st.none() | st.booleans(),
    ),
    metrics=st.just(EvaluationMetrics(in_="x", groups={"g": MetricGroup("r", "t", {"s": MetricValue("INT", "$a")})})),
)  # fmt: skip
FRAMEWORK = {"name": "a", "version": "b", "command": "c"}


def test_codec_ignores_unknown_fields_and_names_missing_ones() -> None:
    assert from_plain(Framework, FRAMEWORK | {"from_the_future": 1}) == Framework("a", "b", "c")
    with pytest.raises(CodecError, match=r"\$\.command is missing"):
        from_plain(Framework, {"name": "a", "version": "b"})


@pytest.mark.parametrize(
    ("plain", "place"),
    [
        ({"name": 1, "framework": {}}, r"\$\.name"),
        ({"name": "x", "framework": []}, r"\$\.framework"),
        ({"name": "x", "framework": FRAMEWORK, "resources": {"learners": 1.5}}, "learners"),
        ({"name": "x", "framework": FRAMEWORK, "resources": {"learners": True}}, "learners"),
        ({"name": "x", "framework": FRAMEWORK, "batch": {"network": "moon"}}, "network"),
    ],
)
def test_codec_names_path_of_value_with_wrong_type(plain: dict[str, object], place: str) -> None:
    with pytest.raises(CodecError, match=place):
        from_plain(JobSpec, plain)


def test_codec_round_trips_optional_dataclasses_and_drops_trailing_underscore_of_field_names() -> None:
    refused = SubmissionResult(problem=Problem("C101", "bad", 78))
    assert from_plain(SubmissionResult, to_plain(refused)) == refused
    assert from_plain(SubmissionResult, to_plain(SubmissionResult(id="x"))).problem is None
    assert to_plain(EvaluationMetrics(in_="log"))["in"] == "log"


CHECKPOINTS = st.builds(
    Checkpoint, *[st.booleans()] * 3, st.none() | st.floats(0, 9e9), st.none() | st.floats(), TEXT
).filter(lambda c: c.saved_at == c.saved_at)
SPENTS = st.builds(Spent, *[st.integers(0, 99)] * 4, st.floats(0, 1e9), st.integers(0, 9))
CHAINED = st.one_of(
    CHECKPOINTS,
    SPENTS,
    st.builds(
        Overrides, st.none() | st.floats(0, 8), st.none() | st.integers(1), st.lists(TEXT, max_size=3).map(tuple)
    ),
    st.builds(AttemptEnd, TEXT, CHECKPOINTS, st.floats(0, 1e9), st.booleans()),
    st.builds(
        FinalRecord, native_id=TEXT, outcome=st.sampled_from(Outcome), at=st.floats(0, 9e9), stored=st.booleans(),
        interruption=TEXT, checkpoint=CHECKPOINTS, goes_on=st.sampled_from(GoesOn), spent=st.none() | SPENTS,
        gpu_seconds=st.floats(0, 1e9),
    ),
    st.builds(AttemptView, st.integers(1, 9), TEXT, TEXT, st.floats(0, 9e9), checkpoint_took_s=st.none() | st.just(4)),
    st.builds(Resume, st.none() | st.floats(0, 8), st.none() | TEXT),
)  # fmt: skip


@given(SPECS | CHAINED)
def test_codec_round_trips_job_specs_and_continuation_records(record: object) -> None:
    assert from_plain(type(record), json.loads(json.dumps(to_plain(record)))) == record


def test_codec_reads_final_record_of_older_release() -> None:
    old = {"native_id": "7", "outcome": "completed", "at": 1, "stored": True, "format": 1}
    record = from_plain(FinalRecord, old)
    assert (record.checkpoint, record.goes_on, record.spent) == (Checkpoint(), GoesOn.NO, None)


def test_codec_rejects_unsupported_type() -> None:
    @dataclasses.dataclass(frozen=True)
    class Odd:
        value: object

    with pytest.raises(CodecError, match="bytes"):
        to_plain(Odd(b"x"))
