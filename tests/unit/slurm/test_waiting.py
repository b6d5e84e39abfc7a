"""What the adapter asks to explain why jobs wait, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from ffdl_batch.domain.observation import NativeId
from ffdl_batch.domain.spec import BatchOptions, Framework, JobSpec, Resources
from ffdl_batch.domain.waiting import BlockerKind, Explanation, WaitKind
from ffdl_batch.ports.capabilities import WaitingRequest
from ffdl_batch.ports.scheduler import BackendFacts, SchedulerUnreachable
from ffdl_slurm import waiting_commands as commands
from ffdl_slurm.parsers import parse_sinfo
from ffdl_slurm.settings import SlurmSettings
from ffdl_slurm.waiting import PICTURE_LIFE_S, WaitingJobs
from tests.captured import expected

T = TypeVar("T")
PLACE = Path(expected.__file__).parent
CAPTURED = PLACE / "waiting-26.05"
NOW = 1795476000.0


class Office:
    """Slurm's answers from files; `asked` has the commands, and those in `silent` are not answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.silent: set[str] = set()
        self.now = 0.0

    def query(self, argv: list[str], parse: Callable[[str], T]) -> T:
        what = argv[-1] if argv[0] == "scontrol" else argv[0]
        self.asked.append(tuple(argv))
        if what in self.silent:
            raise SchedulerUnreachable(f"{argv[0]} gave no answer")
        names = {"squeue": "queue", "node": "nodes", "partition": "partitions", "reservation": "reservations",
                 "flags=qos,assoc": "limits", "sprio": "factors"}  # fmt: skip
        return parse((CAPTURED / f"{names[what]}.txt").read_text())


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def waiting(office: Office) -> WaitingJobs:
    return WaitingJobs(office, SlurmSettings(), lambda: NOW, lambda: office.now)  # type: ignore[arg-type]


def facts() -> BackendFacts:
    nodes, partitions = parse_sinfo((PLACE / "slurm-26.05" / "sinfo.txt").read_text())
    return BackendFacts(nodes=nodes, partitions=partitions)


def number_of(name: str) -> str:
    rows = (line.split("|") for line in (CAPTURED / "queue.txt").read_text().splitlines())
    return next(row[0] for row in rows if row[-1] == name).partition("_")[0]


def request(name: str = "", gpu_type: str = "v100", gpus: float = 2, **batch: object) -> WaitingRequest:
    each = Resources(gpus=gpus, gpu_type=gpu_type, cpus=1, memory_bytes=100 * 1024**2)
    spec = JobSpec("x", Framework("custom", "1", "true"), resources=each, batch=BatchOptions(**batch))  # type: ignore[arg-type]
    native = NativeId(number_of(name), "0" if name == "array" else None) if name else None
    return WaitingRequest(spec, facts(), native)


def one(waiting: WaitingJobs, asked: WaitingRequest) -> Explanation:
    (found,) = waiting.explain([asked])
    assert found is not None
    return found


def test_any_number_of_jobs_costs_one_look(waiting: WaitingJobs, office: Office) -> None:
    names = ("next", "behind", "array", "held", "later")
    found = waiting.explain([request(name) for name in names])
    kinds = [known.reason.kind for known in found if known is not None and known.reason is not None]
    assert kinds == [
        WaitKind.RESOURCES,
        WaitKind.PRIORITY,
        WaitKind.PRIORITY,
        WaitKind.HELD_BY_USER,
        WaitKind.BEGIN_TIME,
    ]
    assert [argv[0] for argv in office.asked] == ["squeue", "scontrol", "scontrol", "sprio"]


def test_a_look_serves_others_for_a_while(waiting: WaitingJobs, office: Office) -> None:
    waiting.explain([request("next")])
    office.now = PICTURE_LIFE_S - 1
    waiting.explain([request("next")])
    assert sum(argv[0] == "squeue" for argv in office.asked) == 1
    office.now = PICTURE_LIFE_S + 1
    waiting.explain([request("next")])
    assert sum(argv[0] == "squeue" for argv in office.asked) == 2


def test_no_job_asks_nobody(waiting: WaitingJobs, office: Office) -> None:
    assert waiting.explain([]) == [] and not office.asked


def test_resources_with_room_and_those_before_it(waiting: WaitingJobs) -> None:
    known = one(waiting, request("next"))
    (room,), (ahead,) = known.rooms, known.ahead
    assert (room.partition, room.gpu_type, room.gpus, room.gpus_free, room.fitting, room.wanted) == (
        "main", "v100", 8, 0, 0, 1)  # fmt: skip
    assert (ahead.jobs, ahead.running) == (0, 2) and ahead.next_end is not None
    assert known.known_at == NOW and not known.blockers


def test_nodes_that_would_do_and_take_none_are_named(waiting: WaitingJobs) -> None:
    known = one(waiting, request("away", "a100", 1, nodelist="n3"))
    assert known.reason is not None and known.reason.kind is WaitKind.NODES_AWAY
    assert [(away.name, away.why) for away in known.rooms[0].away] == [("n3", "fan: two words")]
    assert [(one.kind, one.name) for one in known.blockers] == [(BlockerKind.RESERVATION, "maint")]


def test_a_limit_has_its_figures(waiting: WaitingJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_slurm.waiting.os.getuid", lambda: 2001)
    monkeypatch.setattr("ffdl_slurm.waiting._user", lambda: "alice")
    known = one(waiting, request("limited"))
    assert known.reason is not None and known.reason.limit is not None
    limit = known.reason.limit
    assert (limit.name, limit.most, limit.used, limit.asked) == ("high", "1", "0", "2")


def test_a_dependency_is_named(waiting: WaitingJobs) -> None:
    known = one(waiting, request("depends"))
    (blocker,) = known.blockers
    assert blocker.kind is BlockerKind.DEPENDENCY and blocker.name.startswith(f"afterok:{number_of('next')}")


def test_a_job_in_two_partitions_has_the_room_of_both(waiting: WaitingJobs) -> None:
    known = one(waiting, request("wide", gpus=1))
    assert [room.partition for room in known.rooms] == ["main", "short"]
    assert known.figures["longest time in short"] == "00:02:00"


def test_a_request_that_is_not_submitted_has_no_reason(waiting: WaitingJobs, office: Office) -> None:
    known = one(waiting, request())
    assert known.reason is None and known.partitions == ("main",)  # the default one
    assert known.ahead[0].jobs >= 3
    assert "sprio" not in [argv[0] for argv in office.asked]


@pytest.mark.parametrize("name", ["taken-n1", ""])
def test_a_job_that_does_not_wait_is_none(waiting: WaitingJobs, name: str) -> None:
    native = NativeId(number_of(name)) if name else NativeId("999999")
    assert waiting.explain([WaitingRequest(request().spec, facts(), native)]) == [None]


def test_what_cannot_be_had_beside_is_told_and_hides_nothing(waiting: WaitingJobs, office: Office) -> None:
    office.silent = {"reservation", "sprio"}
    known = one(waiting, request("away", "a100", 1))
    assert known.reason is not None
    assert known.lacks == ("reservations could not be read: scontrol gave no answer",)


@pytest.mark.parametrize("what", ["squeue", "node", "partition"])
def test_no_answer_is_none(waiting: WaitingJobs, office: Office, what: str) -> None:
    office.silent = {what}
    with pytest.raises(SchedulerUnreachable):
        waiting.explain([request("next")])


def test_commands_only_ask() -> None:
    argvs = (commands.live_argv(), commands.nodes_argv(), commands.partitions_argv(), commands.reservations_argv(),
             commands.limits_argv(), commands.factors_argv(["1"]))  # fmt: skip
    for argv in argvs:
        assert argv[0] in ("squeue", "sprio") or (argv[0], argv[-2]) in (
            ("scontrol", "show"),
            ("scontrol", "assoc_mgr"),
        )
