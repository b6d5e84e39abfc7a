"""The parsers read what every supported release printed; the files are under tests/captured/.

They are made by ``make conformance SUITE=... CONFORMANCE=--write-captures``, which holds the same expectations against
that release itself, and those of jobs that wait by ``python -m tests.captured.capture_waiting``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ffdl_batch.domain.pending.explanation import Limit, Per, WaitKind
from ffdl_slurm.observing.parsers import Garbled
from ffdl_slurm.pending import parsers
from ffdl_slurm.pending.capacity import ahead_in
from ffdl_slurm.pending.limit_usage import Whose, with_figures
from ffdl_slurm.pending.parsers import parse_trial
from ffdl_slurm.pending.reasons import read_limit, read_reason
from ffdl_slurm.pending.squeue import LiveJob, parse_live
from tests.captured import answers, expected
from tests.captured.queues import queue_text
from tests.cluster.rig.suites import SUITES

PLACE = Path(expected.__file__).parent
KINDS = {
    "next": WaitKind.RESOURCES, "behind": WaitKind.PRIORITY, "held": WaitKind.HELD_BY_USER,
    "later": WaitKind.BEGIN_TIME, "away": WaitKind.NODES_AWAY, "limited": WaitKind.LIMIT,
    "array": WaitKind.PRIORITY, "long": WaitKind.PARTITION_TIME, "depends": WaitKind.DEPENDENCY,
}  # fmt: skip


@pytest.fixture(params=expected.RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def captured(release: str) -> Path:
    return expected.directory(release)


@pytest.fixture
def waiting(release: str) -> Path:
    """Its files of jobs that wait."""
    return PLACE / f"waiting-{release}"


def test_captures_cover_every_slurm_release_of_suites() -> None:
    assert sorted(expected.RELEASES) == sorted(suite.slurm for suite in SUITES.values())


def test_captures_have_every_expected_file_without_paths_of_capturing_host(captured: Path) -> None:
    """Paths and names are those of the test cluster."""
    assert sorted(path.name for path in captured.iterdir()) == sorted(expected.FILES)
    for path in captured.iterdir():
        text = path.read_text()
        assert "/root" not in text and "/proc" not in text, path.name


def test_squeue_sinfo_and_version_parsers_read_captured_output(captured: Path, release: str) -> None:
    expected.check_squeue((captured / "squeue.txt").read_text())
    expected.check_excluded((captured / "squeue-excluded.txt").read_text())
    expected.check_site((captured / "sinfo.txt").read_text())
    expected.check_version((captured / "version.txt").read_text(), release)


@pytest.mark.parametrize(("command", "ended"), [("squeue", "squeue-ended.txt"), ("sacct", "sacct.txt")])
def test_squeue_and_sacct_parsers_read_captured_ends_and_named_jobs(captured: Path, command: str, ended: str) -> None:
    expected.check_ended((captured / ended).read_text(), command)
    expected.check_named((captured / f"{command}-named.txt").read_text(), command)


def test_captured_refusals_and_outages_map_to_expected_errors(captured: Path) -> None:
    answers.check_answers(answers.load(captured / answers.FILE))


def jobs_of(waiting: Path) -> dict[str, LiveJob]:
    text = queue_text(waiting)
    names = [line.split("|")[-1] for line in text.splitlines()[1:]]
    return dict(zip(names, parse_live(text).jobs, strict=True))


def test_read_reason_classifies_captured_pending_reasons(waiting: Path) -> None:
    jobs = jobs_of(waiting)
    assert {name: read_reason(jobs[name].reason).kind for name in KINDS} == KINDS
    assert read_reason(jobs["wide"].reason).kind in (WaitKind.NODES_AWAY, WaitKind.RESOURCES, WaitKind.PRIORITY)


def test_live_job_parser_reads_captured_queue_fields(waiting: Path) -> None:
    jobs = jobs_of(waiting)
    taken, first, array, wide = jobs["taken-n1"], jobs["next"], jobs["array"], jobs["wide"]
    assert (taken.pending, taken.gpus, taken.gpu_types, taken.user) == (False, 4, ("v100",), "bob")
    assert taken.end is not None and taken.start is not None and taken.end - taken.start == 600
    assert (first.pending, first.gpus, first.limit_s, first.partitions) == (True, 2, 300, ("main",))
    assert first.start is not None and first.submitted is not None and first.start >= first.submitted
    assert (array.elements, array.gpus) == (10, 1)
    assert (wide.nodes, wide.gpus, wide.partitions) == (2, 2, ("main", "short"))
    assert jobs["depends"].dependency == f"afterok:{first.number}(unfulfilled)"
    assert jobs["limited"].qos == "high" and jobs["held"].priority == 0


def test_ahead_in_counts_captured_jobs_before_own_job(waiting: Path) -> None:
    jobs = jobs_of(waiting)
    listed = list(jobs.values())
    assert ahead_in("main", jobs["next"], "alice", listed).jobs == 0
    behind = ahead_in("main", jobs["behind"], "alice", listed)
    assert behind.jobs >= 1 and behind.own == behind.jobs and behind.running == 2


def test_node_parser_reads_captured_capacity_and_drain_reason(waiting: Path) -> None:
    nodes = {node.name: node for node in parsers.parse_nodes((waiting / "nodes.txt").read_text())}
    assert sorted(nodes) == ["n1", "n2", "n3"]
    assert [nodes[name].takes_jobs for name in ("n1", "n2", "n3")] == [True, True, False]
    assert (nodes["n1"].all_gpus("v100"), nodes["n1"].free_gpus("v100"), nodes["n1"].free_gpus("")) == (4, 0, 0)
    assert (nodes["n3"].all_gpus(""), nodes["n3"].free_gpus("a100"), nodes["n3"].why) == (4, 4, "fan: two words")
    assert nodes["n1"].cpus_free == 7 and nodes["n1"].memory_free_mib == 3900


def test_partition_and_reservation_parsers_read_captured_output(waiting: Path) -> None:
    found = {one.name: one for one in parsers.parse_partitions((waiting / "partitions.txt").read_text())}
    assert (found["main"].is_default, found["main"].max_time, found["main"].state) == (True, "", "UP")
    assert found["short"].max_time == "00:02:00" and not found["short"].is_default
    (one,) = parsers.parse_reservations((waiting / "reservations.txt").read_text())
    assert (one.name, one.nodes) == ("maint", "n3") and one.begins is not None and one.ends == one.begins + 3600
    assert one.as_blocker().detail == "maintenance of n3 (1 nodes)"


def test_limit_parser_adds_figures_to_captured_limit(waiting: Path) -> None:
    records = parsers.parse_limits((waiting / "limits.txt").read_text())
    limit = read_limit("QOSMaxGRESPerUser")
    assert limit is not None
    found = with_figures(limit, records, Whose("high", "ffdl", "alice", 2001, {"gres/gpu:v100": 2}))
    assert found == Limit("QOS", "GPUs", Per.USER, name="high", most="1", used="0", asked="2")
    without = with_figures(limit, records, Whose("normal", "ffdl", "alice", 2001, {}))
    assert without.name == "high"  # the only QOS with such a limit


def test_factor_parser_reads_multifactor_priority_and_sums_tres() -> None:
    """What sprio of a site with priority/multifactor prints; the values of TRES are summed."""
    header = "JOBID|PRIORITY|SITE|AGE|ASSOC|FAIRSHARE|JOBSIZE|PARTITION|QOS|NICE|TRES\n"
    found = parsers.parse_factors(header + "7|1850|0|250|0|500|0|1000|0|0|cpu=20,gres/gpu=80\n")
    priority, parts = found["7"]
    assert priority == 1850
    assert {part.name: part.value for part in parts} == {"age": 250, "fairshare": 500, "partition": 1000, "tres": 100}


def test_factor_parser_reads_nice_and_rejects_output_without_header() -> None:
    """Priorities go by age alone there: sprio has nothing to say, up to 24.11 not even a header."""
    factors = parsers.parse_factors((PLACE / "waiting-26.05" / "factors.txt").read_text())
    assert any([part.name for part in parts] == ["nice"] for _, parts in factors.values())
    for release in ("20.11", "22.05", "24.11"):
        with pytest.raises(Garbled, match="no header"):
            parsers.parse_factors((PLACE / f"waiting-{release}" / "factors.txt").read_text())


def test_trial_parser_reads_start_preemption_and_refusal(waiting: Path) -> None:
    same = parse_trial((waiting / "trial-same.txt").read_text())
    assert same.at is not None and same.nodes and not same.preempts
    urgent = parse_trial((waiting / "trial-urgent.txt").read_text())
    assert urgent.preempts == 1 and urgent.at is not None and urgent.at < same.at
    away = parse_trial((waiting / "trial-away.txt").read_text())
    assert away.at is None and "not available" in away.sentence


@pytest.mark.parametrize("text", ["", "<html>502 Bad Gateway</html>\n"])
@pytest.mark.parametrize(
    "parse",
    [parse_live, parsers.parse_nodes, parsers.parse_partitions, parsers.parse_reservations, parsers.parse_limits,
     parsers.parse_factors],
)  # fmt: skip
def test_pending_job_parsers_reject_empty_or_foreign_output(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(Garbled):
        parse(text)
    assert parsers.parse_reservations("No reservations in the system\n") == []


@pytest.mark.parametrize(
    ("state", "pending", "reason"),
    [
        ("PENDING", True, "Resources"), ("REQUEUE_HOLD", True, "Resources"), ("SPECIAL_EXIT", True, "Resources"),
        ("CONFIGURING", True, "Prolog"), ("RUNNING", False, "Resources"), ("SUSPENDED", False, "Resources"),
    ],
)  # fmt: skip
def test_live_job_parser_reads_pending_and_reason_of_each_state(state: str, pending: bool, reason: str) -> None:
    text = queue_text(PLACE / "waiting-26.05")
    header, line = text.splitlines()[0], next(one for one in text.splitlines() if one.endswith("|next"))
    (job,) = parse_live(f"{header}\n{line.replace('|PENDING|', f'|{state}|')}\n").jobs
    assert (job.pending, job.reason) == (pending, reason)
