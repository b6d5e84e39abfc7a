"""What the adapter asks to explain why jobs wait, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from ffdl_batch.domain.backend_facts import BackendFacts, WaitingRequest
from ffdl_batch.domain.job.spec import BatchOptions, Framework, JobSpec, Resources
from ffdl_batch.domain.outcome.observation import NativeId
from ffdl_batch.domain.pending.explanation import BlockerKind, Explanation, WaitKind
from ffdl_batch.domain.scheduler_errors import NotNow, SchedulerUnreachable
from ffdl_slurm.observing.sinfo import parse_sinfo
from ffdl_slurm.pending import commands, parsers
from ffdl_slurm.pending.capacity import Share, ahead_in, capacity_in
from ffdl_slurm.pending.explanation import PICTURE_LIFE_S, WaitingJobs
from ffdl_slurm.pending.squeue import parse_live
from ffdl_slurm.settings import SlurmSettings
from tests.captured import expected
from tests.captured.queues import queue_text

T = TypeVar("T")
PLACE = Path(expected.__file__).parent
CAPTURED = PLACE / "waiting-26.05"
NOW = 1795476000.0


class Office:
    """Slurm's answers from files; `asked` has the commands, and those in `silent` are not answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.silent: set[str] = set()
        self.more = ""
        self.now = 0.0

    def query(self, argv: list[str], parse: Callable[[str], T]) -> T:
        what = argv[-1] if argv[0] == "scontrol" else argv[0]
        self.asked.append(tuple(argv))
        if what in self.silent:
            raise SchedulerUnreachable(f"{argv[0]} gave no answer")
        names = {"squeue": "queue", "node": "nodes", "partition": "partitions", "reservation": "reservations",
                 "flags=qos,assoc": "limits", "sprio": "factors"}  # fmt: skip
        return parse(
            queue_text(CAPTURED) + self.more if what == "squeue" else (CAPTURED / f"{names[what]}.txt").read_text()
        )


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def waiting(office: Office) -> WaitingJobs:
    return WaitingJobs(office, SlurmSettings(), lambda: NOW, lambda: office.now)  # type: ignore[arg-type]


def facts() -> BackendFacts:
    nodes, partitions, _ = parse_sinfo((PLACE / "slurm-26.05" / "sinfo.txt").read_text())
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


def kind_of(known: Explanation | None) -> WaitKind | None:
    return known.reason.kind if known is not None and known.reason is not None else None


def test_slurm_explain_queries_once_for_several_jobs_and_not_without_jobs(waiting: WaitingJobs, office: Office) -> None:
    assert waiting.explain([]) == [] and not office.asked
    found = waiting.explain([request(name) for name in ("next", "behind", "array", "held", "later")])
    kinds = [WaitKind.RESOURCES, *[WaitKind.PRIORITY] * 2, WaitKind.HELD_BY_USER, WaitKind.BEGIN_TIME]
    assert [kind_of(known) for known in found] == kinds
    assert [argv[0] for argv in office.asked] == ["squeue", "scontrol", "scontrol", "sprio"]


def test_slurm_explain_reuses_queue_listing_until_it_expires(waiting: WaitingJobs, office: Office) -> None:
    for now, listings in ((0.0, 1), (PICTURE_LIFE_S - 1, 1), (PICTURE_LIFE_S + 1, 2)):
        office.now = now
        waiting.explain([request("next")])
        assert sum(argv[0] == "squeue" for argv in office.asked) == listings


def test_slurm_explain_reports_capacity_and_jobs_ahead(waiting: WaitingJobs) -> None:
    known = one(waiting, request("next"))
    (room,), (ahead,) = known.capacity, known.ahead
    assert (room.partition, room.gpu_type, room.gpus) == ("main", "v100", 8)
    assert (room.gpus_free, room.fitting, room.wanted) == (0, 0, 1)
    assert (ahead.jobs, ahead.running) == (0, 2) and ahead.next_end is not None
    assert known.known_at == NOW and not known.blockers


def test_slurm_explain_names_unreadable_parts_of_site(waiting: WaitingJobs) -> None:
    asked = request("next")
    asked = replace(asked, facts=replace(asked.facts, lacks=("slurm.conf cannot be read",)))
    assert one(waiting, asked).lacks == ("slurm.conf cannot be read",)


def test_slurm_explain_names_unavailable_nodes_and_reservation(waiting: WaitingJobs) -> None:
    known = one(waiting, request("away", "a100", 1, nodelist="n3"))
    assert kind_of(known) is WaitKind.NODES_AWAY
    assert [(away.name, away.why) for away in known.capacity[0].away] == [("n3", "fan: two words")]
    assert [(one.kind, one.name) for one in known.blockers] == [(BlockerKind.RESERVATION, "maint")]


def test_slurm_explain_reports_figures_of_limit(waiting: WaitingJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_slurm.pending.explanation.os.getuid", lambda: 2001)
    monkeypatch.setattr("ffdl_slurm.pending.explanation.user_name", lambda _: "alice")
    known = one(waiting, request("limited"))
    assert known.reason is not None and known.reason.limit is not None
    limit = known.reason.limit
    assert (limit.name, limit.most, limit.used, limit.asked) == ("high", "1", "0", "2")


def test_slurm_explain_names_dependency_and_reports_capacity_of_both_partitions(waiting: WaitingJobs) -> None:
    (blocker,) = one(waiting, request("depends")).blockers
    assert blocker.kind is BlockerKind.DEPENDENCY and blocker.name.startswith(f"afterok:{number_of('next')}")
    known = one(waiting, request("wide", gpus=1))
    assert [room.partition for room in known.capacity] == ["main", "short"]
    assert known.figures["longest time in short"] == "00:02:00"


def test_slurm_explain_returns_capacity_without_reason_before_submission(waiting: WaitingJobs, office: Office) -> None:
    known = one(waiting, request())
    assert known.reason is None and known.partitions == ("main",)  # the default one
    assert known.ahead[0].jobs >= 3
    assert "sprio" not in [argv[0] for argv in office.asked]


def test_slurm_explain_reports_and_ignores_malformed_squeue_row_but_accepts_name_with_line_breaks(
    waiting: WaitingJobs, office: Office
) -> None:
    office.more = "of a name\nwith|line breaks\n"
    assert one(waiting, request("next")).lacks == ()
    office.more, office.now = "999|PENDING|main\nmore of a name\n", PICTURE_LIFE_S + 1
    known = one(waiting, request("next"))
    assert kind_of(known) is WaitKind.RESOURCES
    assert known.lacks == ("1 row of squeue's could not be read, and '999|PENDING|main' counts nowhere",)
    with pytest.raises(NotNow, match="a row of squeue's cannot be read, which may be the job's"):
        waiting.explain([WaitingRequest(request().spec, facts(), NativeId("999"))])


@pytest.mark.parametrize("number", [number_of("taken-n1"), "999999"])
def test_slurm_explain_returns_none_for_running_or_unknown_job(waiting: WaitingJobs, number: str) -> None:
    assert waiting.explain([WaitingRequest(request().spec, facts(), NativeId(number))]) == [None]


def test_slurm_explain_reports_failed_optional_query_and_keeps_reason(waiting: WaitingJobs, office: Office) -> None:
    office.silent = {"reservation", "sprio"}
    known = one(waiting, request("away", "a100", 1))
    assert known.reason is not None
    assert known.lacks == ("reservations could not be read: scontrol gave no answer",)


@pytest.mark.parametrize("what", ["squeue", "node", "partition"])
def test_slurm_explain_raises_if_required_query_fails(waiting: WaitingJobs, office: Office, what: str) -> None:
    office.silent = {what}
    with pytest.raises(SchedulerUnreachable):
        waiting.explain([request("next")])


def test_slurm_explain_uses_only_read_commands() -> None:
    argvs = (commands.live_argv(), commands.nodes_argv(), commands.partitions_argv(), commands.reservations_argv(),
             commands.limits_argv(), commands.factors_argv(["1"]))  # fmt: skip
    reads = ("scontrol", "show"), ("scontrol", "assoc_mgr")
    for argv in argvs:
        assert argv[0] in ("squeue", "sprio") or (argv[0], argv[-2]) in reads


def test_node_parser_counts_used_gpus_without_type() -> None:
    """`scontrol --details show node` gives them the type `(null)`, or types that the node's own line leaves out."""
    line = "NodeName=n1 CPUTot=8 Gres=gpu:4(S:0-1) GresUsed={} RealMemory=4000 State=MIXED Partitions=main\n"
    for used in ("gpu:(null):3(IDX:0-2)", "gpu:3(IDX:0-2)", "gpu:a100:3(IDX:0-2)"):
        (node,) = parsers.parse_nodes(line.format(used))
        assert (node.all_gpus(""), node.free_gpus("")) == (4, 1), used


HEADER = "JOBID|STATE|" + "|".join(commands.LIVE_FIELDS[2:]) + "|NAME\n"
NO_GPUS = {"tres-per-node": "N/A", "tres-alloc": "cpu=4,mem=8G,node=2", "tres-per-job": "N/A", "tres-per-task": "N/A",
           "tres-per-socket": "N/A", "NumTasks": "4", "Sockets": "*"}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "gpus", "types"),
    [
        ({}, 0, ()),
        ({"tres-per-job": "gpu:8"}, 8, ("",)),  # 20.11
        ({"tres-per-job": "gres:gpu:a100:8", "tres-per-node": "gres:gpu:a100:4"}, 8, ("a100",)),  # 22.05
        ({"tres-per-node": "gres/gpu:4"}, 8, ("",)),
        ({"tres-per-task": "cpu=2,gres/gpu=1"}, 4, ("",)),  # 24.11 and later
        ({"tres-per-task": "gres:gpu:v100:1"}, 4, ("v100",)),
        ({"tres-per-socket": "gres/gpu:2", "Sockets": "2"}, 8, ("",)),
        ({"tres-per-node": "gres/shard:4"}, 0, ()),
        ({"tres-per-job": "gpu:8", "tres-alloc": "cpu=4,node=2,gres/gpu=6,gres/gpu:a100=6"}, 6, ("",)),
        ({"tres-alloc": "cpu=4,node=2,gres/gpu:a100=2,gres/gpu:v100=1"}, 3, ("a100", "v100")),
    ],
)
def test_squeue_parser_counts_gpus_of_every_option(said: dict[str, str], gpus: int, types: tuple[str, ...]) -> None:
    row = dict(zip(commands.LIVE_FIELDS, ["7", "PENDING", "main", "1", "bob", "Priority", *["N/A"] * 99], strict=False))
    row |= {"NumNodes": "2", **NO_GPUS, **said}
    (job,) = parse_live(HEADER + "|".join([*row.values(), "x"]) + "\n").jobs
    assert (job.gpus, job.gpu_types) == (gpus, types)


def test_ahead_in_orders_parts_of_heterogeneous_jobs_by_job_id() -> None:
    row = "{}|PENDING|main|1|bob|Priority|N/A|N/A|1|5:00|normal|ffdl|(null)|(null)|1|N/A|(null)|N/A|N/A|N/A|N/A|1|*|x\n"
    jobs = parse_live(HEADER + "".join(row.format(number) for number in ("12+0", "12+1", "13", "14+0"))).jobs
    assert ahead_in("main", jobs[2], "bob", jobs).jobs == 2


@pytest.mark.parametrize(
    ("reservation", "told", "room"), [("", "ours", 0), ("others", "ours", 0), ("ours,x", "ours", 4), ("ours", "", 4)]
)
def test_capacity_of_reserved_node_counts_only_for_its_reservation(reservation: str, told: str, room: int) -> None:
    line = "NodeName=n1 CPUTot=8 Gres=gpu:a100:4 RealMemory=4000 State=IDLE+RESERVED Partitions=main"
    nodes = parsers.parse_nodes(f"{line} ReservationName={told}\n" if told else f"{line}\n")
    found = capacity_in(
        "main", Share(1, 1, "a100", 1, 100), request("", "a100", 1, reservation=reservation).spec, nodes
    )
    assert found.gpus_free == room
    assert [one.why for one in found.away] == ([] if room else ["reservation ours"])


def test_capacity_lists_eight_unavailable_nodes_and_counts_the_rest() -> None:
    lines = (f"NodeName=n{number} CPUTot=8 RealMemory=4000 State=DOWN Partitions=main\n" for number in range(50))
    found = capacity_in("main", Share(1, 0, "", 1, 100), request("", "", 0).spec, parsers.parse_nodes("".join(lines)))
    assert (len(found.away), found.away_more) == (8, 42)


def test_slurm_explain_finds_own_jobs_by_user_of_job(waiting: WaitingJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever works from outside may have another name there."""
    monkeypatch.setattr("ffdl_slurm.pending.explanation.user_name", lambda _: "somebody")
    (ahead,) = one(waiting, request("behind")).ahead
    assert (ahead.jobs, ahead.own) == (1, 1)


def test_slurm_explain_names_only_reservations_of_eligible_nodes(
    waiting: WaitingJobs, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (CAPTURED / "reservations.txt").read_text().splitlines()[0]
    others = [first.replace("maint", f"r{number}", 1).replace("Nodes=n3", "Nodes=elsewhere1") for number in range(20)]
    near = [first.replace("maint", f"s{number}", 1) for number in range(20)]
    whole, plain = parsers.parse_reservations("\n".join([*others, *near]) + "\n"), office.query
    monkeypatch.setattr(office, "query", lambda argv, parse: whole if argv[-1] == "reservation" else plain(argv, parse))
    named = [blocker.name for blocker in one(waiting, request("away", "a100", 1)).blockers]
    assert len(named) == 8 and all(name.startswith("s") for name in named)
