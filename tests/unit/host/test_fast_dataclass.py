"""Dataclasses of the project beside those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from ffdl_batch.host import fast_dataclass


def make(dataclass: Any, **options: bool) -> Any:
    """A class with each kind of field."""

    @dataclass(**options)
    class Job:
        name: str
        secret: str = field(repr=False)
        nodes: int = 1
        labels: list[str] = field(default_factory=list)

        def __post_init__(self) -> None:
            assert self.nodes > 0, self.nodes

    return Job


BOTH = pytest.mark.parametrize("dataclass", [dataclasses.dataclass, fast_dataclass.dataclass])
FROZEN = pytest.mark.parametrize("options", [{"frozen": True}, {"frozen": True, "slots": True}])
ALL = pytest.mark.parametrize("options", [{}, {"slots": True}, {"frozen": True}, {"frozen": True, "slots": True}])


@BOTH
@ALL
def test_objects_have_values_of_their_parameters_and_defaults(dataclass: Any, options: dict[str, bool]) -> None:
    job_class = make(dataclass, **options)
    job, other = job_class("train", "x"), job_class("train", secret="x", nodes=2, labels=["a"])
    assert (job.name, job.secret, job.nodes, job.labels) == ("train", "x", 1, [])
    assert (other.nodes, other.labels) == (2, ["a"])
    assert job.labels is not job_class("train", "x").labels
    assert dataclasses.asdict(other) == {"name": "train", "secret": "x", "nodes": 2, "labels": ["a"]}
    assert dataclasses.replace(job, nodes=3).nodes == 3
    assert repr(other).endswith("Job(name='train', nodes=2, labels=['a'])")
    assert not hasattr(job, "__dict__") or "slots" not in options


@BOTH
@pytest.mark.parametrize("arguments", [((), {}), (("a",), {}), (("a", "b"), {"no": 1}), (("a", "b", 1, [], 5), {})])
def test_wrong_parameters_are_type_errors(dataclass: Any, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    with pytest.raises(TypeError, match=r"__init__\(\)"):
        make(dataclass)(*arguments[0], **arguments[1])


@BOTH
def test_post_init_sees_fields_of_each_object(dataclass: Any) -> None:
    job_class = make(dataclass)
    for _ in range(2):
        with pytest.raises(AssertionError, match="0"):
            job_class("a", "b", 0)


@BOTH
@ALL
def test_objects_of_one_class_are_equal_if_all_fields_are(dataclass: Any, options: dict[str, bool]) -> None:
    job_class = make(dataclass, **options)
    assert job_class("a", "b") == job_class("a", "b")
    assert job_class("a", "b") != job_class("a", "b", 2)
    assert job_class("a", "b") != make(dataclass, **options)("a", "b")
    assert job_class("a", "b") != ("a", "b", 1, [])


@BOTH
@FROZEN
def test_frozen_objects_can_be_hashed_and_not_be_changed(dataclass: Any, options: dict[str, bool]) -> None:
    job_class = make(dataclass, **options)
    values = ("a", "b", 1, ())
    job = job_class(*values)
    assert len({job, job_class(*values), job_class("b", *values[1:])}) == 2
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'nodes'"):
        job.nodes = 5
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'nodes'"):
        del job.nodes
    assert job.nodes == 1


@BOTH
def test_changeable_objects_cannot_be_hashed(dataclass: Any) -> None:
    job = make(dataclass)("a", "b")
    job.nodes = 5
    assert copy.deepcopy(job) == job
    with pytest.raises(TypeError, match="unhashable"):
        hash(job)


@BOTH
def test_objects_without_eq_are_equal_to_themselves_alone(dataclass: Any) -> None:
    job_class = make(dataclass, slots=True, eq=False)
    job = job_class("a", "b")
    assert len({job, job_class("a", "b")}) == 2
    assert job == job  # noqa: PLR0124


@BOTH
def test_class_without_fields_and_class_with_own_repr(dataclass: Any) -> None:
    @dataclass
    class Nothing:
        pass

    @dataclass(frozen=True)
    class Password:
        text: str

        def __repr__(self) -> str:
            return "Password(...)"

    assert Nothing() == Nothing()
    assert repr(Password("secret")) == "Password(...)"
