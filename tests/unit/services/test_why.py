"""`ffdl why` as a service: what is asked of whom, how often, and what is said of jobs in every state."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

import pytest

from ffdl_batch.domain.backend_facts import BackendFacts, NodeShape, PartitionShape, WaitingRequest
from ffdl_batch.domain.job.job import HistoryEntry, Job, JobId
from ffdl_batch.domain.job.spec import BatchOptions, Framework, JobSpec, Resources, Role
from ffdl_batch.domain.job_state import JobState, RequestedAction
from ffdl_batch.domain.outcome.observation import NativeId, Observation, Phase
from ffdl_batch.domain.pending.explanation import (
    Ahead,
    Capacity,
    Explanation,
    Foretold,
    Limit,
    Measure,
    Per,
    Reason,
    WaitKind,
)
from ffdl_batch.domain.scheduler_errors import InvalidRequest, SchedulerMissing, SchedulerUnreachable, TooMany
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.launch_request import LaunchPlan, LaunchRequest
from ffdl_batch.services.pending.pending_time_history import (
    FEWEST,
    are_alike,
    shape_of,
    summarise,
    waits_for_capacity,
    waits_of,
)
from ffdl_batch.services.pending.request_variants import AT_ONCE, LIFE_S, MOST, variants_of
from ffdl_batch.services.refusals import Refused
from tests.fakes.scheduler import FakeScheduler
from tests.unit.services.conftest import MANIFEST, Site

SHAPES = (
    NodeShape("n1", 8, 8 << 30, {"v100": 4}, ("main", "quick")),
    NodeShape("n2", 8, 8 << 30, {"a100": 4}, ("main",)),
)
PARTITIONS = (PartitionShape("main", is_default=True), PartitionShape("quick", max_time_s=7200), PartitionShape("cpu"))
TYPED = MANIFEST.replace("gpus: 1", "gpus: 4\ngpu_type: v100\nbatch: {time: 1h}")


@dataclass
class Seer(FakeScheduler):
    """Explains and foretells: `reason` is why every job waits, `starts` maps a plan's difference to its start."""

    reason: Reason = field(default_factory=lambda: Reason(WaitKind.RESOURCES, "Resources"))
    expected_start: float | None = None
    starts: dict[str, float | None] = field(default_factory=dict)
    trials: list[str] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    explained: int = 0
    silence: Exception | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def probe(self) -> BackendFacts:
        return replace(super().probe(), nodes=SHAPES, partitions=PARTITIONS)

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        each, batch = request.spec.resources, request.spec.batch
        what = f"{each.gpus:g} {each.gpu_type} {batch.partition or 'main'} {batch.time_s} {batch.hold or batch.begin}"
        return replace(super().plan(request), script=what)

    def explain_waiting(self, requests: Sequence[WaitingRequest]) -> Sequence[Explanation | None]:
        if self.silence is not None:
            raise self.silence
        self.explained += 1
        room, ahead = Capacity("main", "v100", 4, 0, 1, 0, 1, 4), Ahead("main", 3, 1, 9, 4, 2)
        base = Explanation(500.0, partitions=("main",), capacity=(room,), ahead=(ahead,))
        queued = replace(base, reason=self.reason, expected_start=self.expected_start)
        return [queued if one.native_id is not None else base for one in requests]

    def foretell(self, plan: LaunchPlan) -> Foretold:
        with self.lock:
            self.trials.append(plan.script)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        threading.Event().wait(0.01)
        with self.lock:
            self.at_once -= 1
        at = self.starts.get(plan.script, self.starts.get("", None))
        if at is None:
            raise InvalidRequest("no such nodes")
        return Foretold("starts", at, "n1")


@pytest.fixture
def seer(site: Site) -> Seer:
    found = Seer()
    site.platform.adapters.use("fake", found)
    return found


def queued(site: Site, manifest: str = TYPED, key: str = "k1") -> Job:
    """A job that the scheduler has."""
    columns = {"native_id": "100", "pending_reason": "Resources"}
    return site.move(site.accept(key, manifest), JobState.DEPLOYING, JobState.QUEUED, columns=columns)


def test_why_reports_reason_evidence_and_sooner_alternatives(site: Site, seer: Seer) -> None:
    now = site.clock.now()
    seer.expected_start = now + 3600
    seer.starts = {
        "": now + 3600,
        "4 a100 main 3600 ": now,
        "4 v100 main 1800 ": now + 600,
        "2 v100 main 3600 ": now + 3590,
    }
    view = site.platform.explainer.explain_job(site.caller, queued(site).id)
    assert view.waits and view.sentence.endswith("(Resources)") and not view.stale
    assert view.trial is not None and view.trial.at == now + 3600
    assert [(one.options, one.sooner_s) for one in view.alternatives] == [
        ("--gpus=a100:4", 3600.0), ("--time=00:30:00", 3000.0)]  # fmt: skip
    said = "\n".join(view.evidence)
    assert "0 of 4 GPUs of type v100 in main are free" in said
    assert "in main 3 jobs are ahead of it (1 of them yours), for 9 GPUs, and 2 run" in said
    assert not seer.submitted


def test_why_subtracts_own_queued_job_from_trials_in_same_queue(site: Site, seer: Seer) -> None:
    """A trial counts the job itself as before it: what that costs is taken off where the same queue is tried."""
    now = site.clock.now()
    seer.expected_start = now + 600
    seer.starts = {"": now + 1200, "4 a100 main 3600 ": now + 600, "4 v100 quick 3600 ": now + 600}
    view = site.platform.explainer.explain_job(site.caller, queued(site).id)
    assert [(one.options, one.at, one.sooner_s) for one in view.alternatives] == [("--gpus=a100:4", now, 600.0)]


def test_why_limits_number_and_concurrency_of_trials_and_caches_them(site: Site, seer: Seer) -> None:
    seer.starts = {"": site.clock.now() + 60}
    job = queued(site)
    site.platform.explainer.explain_job(site.caller, job.id)
    first = len(seer.trials)
    assert 3 <= first <= MOST + 1 and seer.most_at_once <= AT_ONCE
    site.platform.explainer.explain_job(site.caller, job.id)
    assert len(seer.trials) == first
    site.clock.tick(LIFE_S + 1)
    site.platform.explainer.explain_job(site.caller, job.id)
    assert len(seer.trials) == 2 * first


def test_why_runs_no_trial_without_alternatives(site: Site, seer: Seer) -> None:
    view = site.platform.explainer.explain_job(
        site.caller,
        queued(site).id,
        alternatives=False,
    )
    assert not seer.trials and view.sentence and seer.explained == 1


def test_why_runs_no_trial_if_job_does_not_wait_for_capacity(site: Site, seer: Seer) -> None:
    job = queued(site)
    for kind in (WaitKind.HELD_BY_USER, WaitKind.DEPENDENCY, WaitKind.BEGIN_TIME, WaitKind.QUEUE_CLOSED):
        seer.reason, seer.starts = Reason(kind, "Word"), {"": 0.0}
        view = site.platform.explainer.explain_job(site.caller, job.id)
        assert view.waits and not seer.trials and not view.alternatives and view.trial is None, kind


def test_why_tries_only_alternatives_within_limit(site: Site, seer: Seer) -> None:
    limit = Limit("QOS", "GPUs", Per.USER, name="high", most="3", used="1", asked="4")
    seer.reason, seer.starts = Reason(WaitKind.LIMIT, "QOSMaxGRESPerUser", limit=limit), {"": 0.0}
    seer.expected_start = site.clock.now() + 5
    view = site.platform.explainer.explain_job(site.caller, queued(site).id)
    assert [one.options for one in view.alternatives] == ["--gpus=v100:2"]
    assert seer.trials == ["2 v100 main 3600 "]


def test_why_shows_cached_explanation_with_age_when_scheduler_is_unreachable(site: Site, seer: Seer) -> None:
    job = queued(site)
    site.platform.explainer.explain_job(site.caller, job.id)
    asked = len(seer.trials)
    seer.silence = SchedulerUnreachable("the controller is away")
    site.clock.tick(120)
    view = site.platform.explainer.explain_job(site.caller, job.id)
    assert "the controller is away" in view.stale and "ago" in view.stale
    assert view.explanation is not None and view.explanation.known_at == 500.0
    assert len(seer.trials) == asked and site.platform.adapters.is_out("fake")
    explained = seer.explained
    site.platform.explainer.explain_job(site.caller, job.id)  # left alone by the breaker
    assert seer.explained == explained


def test_why_shows_last_pending_reason_when_unreachable_scheduler_left_no_cache(site: Site, seer: Seer) -> None:
    seer.silence = SchedulerUnreachable("the controller is away")
    view = site.platform.explainer.explain_job(site.caller, queued(site).id)
    assert view.explanation is None and view.sentence.startswith("it is in fake's queue; fake has not answered for 0 s")
    assert "the controller is away; its last answer, " in view.sentence and view.sentence.endswith(" ago: Resources")
    assert view.actions == ("nothing: ask again when fake answers; it keeps its place meanwhile",)


def test_why_reports_missing_scheduler_for_queued_job(site: Site, seer: Seer) -> None:
    job = queued(site)
    seer.silence = SchedulerMissing("there is not a kubeconfig")
    view = site.platform.explainer.explain_job(site.caller, job.id)
    assert "; fake cannot be asked: there is not a kubeconfig; its last answer, " in view.sentence
    assert view.actions == ("have that mended; it keeps its place meanwhile",)


@pytest.mark.parametrize("runs", [True, False])
def test_why_reports_cancel_request_that_scheduler_cannot_receive(site: Site, seer: Seer, runs: bool) -> None:
    job = queued(site)
    site.move(job, *([JobState.PROCESSING] if runs else []), columns={"requested_action": RequestedAction.CANCEL})
    begin = "it is not waiting: it is being cancelled" if runs else "it is being cancelled"
    view = site.platform.explainer.explain_job(site.caller, job.id)
    assert (view.sentence, view.waits, view.actions) == (begin, not runs, ("nothing",))
    with pytest.raises(SchedulerMissing), site.platform.adapters.asking("fake"):
        raise SchedulerMissing("the token has expired")
    view = site.platform.explainer.explain_job(site.caller, job.id)
    assert view.sentence == f"{begin}, and fake cannot be asked: the token has expired"
    assert view.actions == ("have that mended: the cancel is sent as soon as it answers",)


def test_why_reports_job_not_yet_submitted_without_scheduler_query(site: Site, seer: Seer) -> None:
    job = site.accept("k1", TYPED)
    assert "about to be handed over" in site.platform.explainer.explain_job(site.caller, job.id).sentence
    reason = "Dependency: training-0a1b2c3d4 has not ended"
    site.move(job, columns={"pending_reason": reason})
    view = site.platform.explainer.explain_job(site.caller, job.id)
    assert view.waits and view.sentence.endswith(reason) and "ffdl show" in view.actions[0]
    assert not seer.explained and not seer.trials


@pytest.mark.parametrize(
    ("state", "told"), [(JobState.PENDING, True), (JobState.FAILED, True), (JobState.COMPLETED, False)]
)
def test_why_advises_restart_of_daemon_that_is_older_than_group_membership(
    site: Site, seer: Seer, joined_later: int, state: JobState, told: bool
) -> None:
    job = queued(site) if state is not JobState.PENDING else site.accept("k1", TYPED)
    if state is not JobState.PENDING:
        site.move(job, JobState.PROCESSING, *([JobState.STORING] if state is JobState.COMPLETED else []), state)
    actions = site.platform.explainer.explain_job(site.caller, job.id).actions
    assert any(f"'{joined_later}'; log in again and run: ffdl daemon restart" in one for one in actions) is told


def test_why_reports_time_of_next_submission_try_for_rejected_job(site: Site, seer: Seer) -> None:
    job, rooms = site.accept("k1", TYPED), site.platform.adapters.submit_limits
    reason = "the quota of Jobs is used up"
    site.move(job, columns={"pending_reason": reason})
    rooms.turned_away(job, TooMany("another reason"))
    assert site.platform.explainer.explain_job(site.caller, job.id).sentence.endswith(reason)
    rooms.taken(job)
    rooms.turned_away(job, TooMany(reason))
    wait_s = round(rooms.wait_s(job))
    sentence = site.platform.explainer.explain_job(site.caller, job.id).sentence
    assert sentence.endswith(f"{reason}; it is tried again in {wait_s} s, or earlier if a job of this daemon ends")
    site.clock.tick(wait_s + 1)
    assert site.platform.explainer.explain_job(site.caller, job.id).sentence.endswith(
        f"{reason}; it is tried again now"
    )


@pytest.mark.parametrize(
    ("steps", "changes", "said"),
    [
        ([JobState.PROCESSING], {"columns": {"nodes": "n1"}}, "it has been running since"),
        ([JobState.PROCESSING, JobState.COMPLETED], {}, "it has completed"),
        ([JobState.FAILED], {"message": "out of memory", "error_code": "C201"}, "it failed with C201: out of memory"),
        ([JobState.CANCELLED], {}, "it was cancelled"),
        ([JobState.PROCESSING, JobState.HALTED], {}, "it was halted"),
    ],
)
def test_why_reports_state_of_job_that_does_not_wait(
    site: Site, seer: Seer, steps: list[JobState], changes: dict[str, Any], said: str
) -> None:
    view = site.platform.explainer.explain_job(
        site.caller,
        site.move(queued(site), *steps, **changes).id,
    )
    assert not view.waits and said in view.sentence and not seer.explained


@pytest.mark.parametrize(
    ("learners", "waits"),
    [
        ("learners: 2", True),
        ("batch: {roles: {chief: {learners: 1}, worker: {learners: 1}}}", True),
        ("learners: 1", False),
    ],
)
def test_why_reports_waiting_learners_of_started_job_with_several_learners(
    site: Site, seer: Seer, learners: str, waits: bool
) -> None:
    job = queued(site, f"{MANIFEST}\n{learners}\n")
    site.move(job, JobState.DOWNLOADING)
    seer.reason = Reason(WaitKind.NO_CAPACITY, "Insufficient cpu")
    view = site.platform.explainer.explain_job(site.caller, job.id, alternatives=False)
    assert view.waits is waits
    assert view.sentence.startswith("some of its learners have their nodes, and others wait: ") is waits


@pytest.mark.parametrize("learners", [1, 2])
def test_why_reports_missing_image_of_learner_while_data_downloads(site: Site, seer: Seer, learners: int) -> None:
    """Another request would wait for the same image, of however many learners it is."""
    job = queued(site, f"{MANIFEST}\nlearners: {learners}\n")
    site.move(job, JobState.DOWNLOADING, columns={"pending_reason": "the image x cannot be had"})
    seer.reason = Reason(WaitKind.IMAGE, "", "the image x cannot be had; correct its name, or push it")
    view = site.platform.explainer.explain_job(site.caller, job.id)
    assert view.waits and view.sentence.startswith("it has its nodes, but its image cannot be had (")
    assert view.actions == ("correct the image's name, or give credentials for its registry",)
    assert not seer.trials and not view.alternatives
    seer.reason = Reason(WaitKind.STARTING)
    assert site.platform.explainer.explain_job(site.caller, job.id).sentence.startswith(
        "it is not waiting: it has its nodes"
    )


def test_why_reports_job_that_scheduler_does_not_list_as_waiting(
    site: Site, seer: Seer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seer, "explain_waiting", lambda requests: [None for _ in requests])
    job = queued(site)
    site.clock.at = job.updated_at + 10
    assert "accepted it 10 s ago, and does not list it as waiting now; ask again" in (
        site.platform.explainer.explain_job(site.caller, job.id).sentence
    )
    site.clock.tick(10)
    view = site.platform.explainer.explain_job(site.caller, job.id)
    assert "it is starting, or has just ended" in view.sentence and view.explanation is None
    site.move(site.job(job.id), columns={"pending_reason": "it was sent to another"})
    view = site.platform.explainer.explain_job(site.caller, job.id)
    assert view.sentence.endswith("ask again in a few seconds; the last known reason: it was sent to another")
    assert not seer.trials


def test_why_predicts_start_and_alternatives_for_unsubmitted_manifest(site: Site, seer: Seer) -> None:
    now = site.clock.now()
    seer.starts = {"": now + 900, "4 v100 quick 3600 ": now}
    outlook = site.platform.explainer.look_ahead(site.caller, site.submission("k", TYPED))
    assert outlook.trial is not None and outlook.trial.at == now + 900
    assert [one.options for one in outlook.alternatives] == ["--partition=quick"]
    assert any("3 jobs wait for room" in line for line in outlook.evidence)
    assert not seer.submitted and not site.platform.storage.store.list_jobs(uid=site.caller.uid)


def test_why_rejects_invalid_manifest(site: Site, seer: Seer) -> None:
    with pytest.raises(Refused):
        site.platform.explainer.look_ahead(
            site.caller,
            site.submission("k", "name: [\n"),
        )


def test_why_shows_observed_reason_if_explanation_has_none(site: Site) -> None:
    job = queued(site)
    site.scheduler.seen[NativeId.parse(job.native_id)] = Observation(Phase.PENDING, "PENDING", reason="Resources")
    view = site.platform.explainer.explain_job(site.caller, job.id)
    assert view.sentence == "fake says: Resources" and not view.alternatives


FACTS = BackendFacts(
    nodes=(
        NodeShape("a", 8, 1 << 33, {"v100": 4}, ("main", "quick")),
        NodeShape("b", 8, 1 << 33, {"a100": 4, "h100": 2}, ("main", "big")),
        NodeShape("c", 8, 1 << 33, {}, ("cpu",)),
    ),
    partitions=(PartitionShape("main", is_default=True), PartitionShape("quick", max_time_s=1800),
                PartitionShape("big"), PartitionShape("cpu")),
)  # fmt: skip


def spec(gpus: float = 4, kind: str = "", learners: int = 1, **batch: object) -> JobSpec:
    each = Resources(gpus=gpus, gpu_type=kind, learners=learners)
    return JobSpec("x", Framework("custom", "1", "true"), resources=each, batch=BatchOptions(**batch))  # type: ignore[arg-type]


def options(one: JobSpec, known: Explanation | None = None) -> list[str]:
    return [variant.options for variant in variants_of(one, FACTS, known)]


def test_variants_change_one_option_each() -> None:
    found = options(spec(4, "v100", 2, time_s=1800))
    assert found == [
        "--partition=quick",
        "--gpus=a100:4",
        "--gpus=h100:4",
        "--time=00:15:00",
        "--gpus=v100:2",
        "--learners=1",
    ]
    assert len(found) <= MOST


def test_variants_skip_partitions_that_cannot_run_job() -> None:
    assert options(spec(4, "", time_s=7200)) == ["--partition=big", "--time=01:00:00", "--time=00:30:00", "--gpus=2"]
    assert "--partition=cpu" in options(spec(0))


def test_variants_try_time_limits_for_job_without_one() -> None:
    assert options(spec(1, "", partition="cpu,quick,big")) == ["--partition=main", "--time=04:00:00", "--time=01:00:00"]


def test_variants_shorten_time_to_per_job_time_limit() -> None:
    def with_limit(most: str, per: Per = Per.JOB) -> Explanation:
        return Explanation(0.0, Reason(WaitKind.LIMIT, limit=Limit("QOS", "time", per, most=most)))

    assert options(spec(1, time_s=7200), with_limit("60")) == ["--time=01:00:00"]
    assert options(spec(1), with_limit("5")) == ["--time=00:05:00"]
    assert options(spec(1, time_s=7200), with_limit("")) == []
    assert options(spec(1, time_s=7200), with_limit("60", Per.ALL)) == []


def test_variants_keep_gpus_and_learners_of_job_with_roles() -> None:
    assert not [
        one for one in options(spec(4, "", 2, roles={"ps": Role()})) if one.startswith(("--gpus", "--learners"))
    ]


def test_variants_remove_hold_begin_and_dependency() -> None:
    waiting = spec(4, hold=True, begin="now+1hour", dependency="afterok:1")
    for variant in variants_of(waiting, FACTS):
        batch = variant.spec.batch
        assert not (batch.hold or batch.begin or batch.dependency)


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        (Limit("QOS", "GPUs", Per.USER, most="6", used="4"), ["--gpus=v100:1", "--learners=1"]),
        (Limit("QOS", "GPUs", Per.JOB, most="4", used="99"), ["--gpus=v100:2", "--learners=1"]),
        (Limit("QOS", "GPUs", Per.USER, most="4", used="4"), []),
        (Limit("QOS", "GPUs", Per.USER, most="5", used="4", asked="8"), []),  # more than it gives, and others run
        (Limit("QOS", "CPUs", Per.USER, most="4", used="0"), []),
        (Limit("QOS", "GPUs", Per.ALL, Measure.RUN_MINUTES, most="4"), []),
        (Limit("QOS", "GPUs", Per.USER), []),
    ],
)
def test_variants_offer_only_gpu_requests_within_known_limit(limit: Limit, found: list[str]) -> None:
    known = Explanation(0.0, Reason(WaitKind.LIMIT, "x", limit=limit))
    expected = found if "--gpus=v100:1" not in found else ["--gpus=v100:1"]  # a learner of 4 GPUs would be over it
    asked = spec(4, "v100", 2)
    assert options(asked, known) == expected


def test_are_alike_compares_total_gpus_type_partition_and_time_within_factor() -> None:
    one = spec(4, "v100", 2, time_s=3600)
    assert are_alike(one, spec(8, "V100", 1, time_s=7200))
    assert not are_alike(one, spec(4, "a100", 2, time_s=3600))
    assert not are_alike(one, spec(4, "v100", 2, time_s=7300))
    assert not are_alike(one, spec(4, "v100", 2))
    assert not are_alike(one, replace(one, batch=replace(one.batch, partition="big")))
    assert shape_of(one) == "8 GPUs of type v100 and a like time limit"
    assert shape_of(spec(1)) == "1 GPU and a like time limit"


def test_waits_for_capacity_is_false_for_begin_hold_or_dependency() -> None:
    assert waits_for_capacity(spec(4))
    for batch in ({"begin": "now+8hours"}, {"hold": True}, {"dependency": "afterok:1"}):
        assert not waits_for_capacity(spec(4, **batch))


def history(*rows: tuple[JobState, float]) -> list[HistoryEntry]:
    return [HistoryEntry(JobId("training-000000000"), number, at, state, 1) for number, (state, at) in enumerate(rows)]


def test_wait_history_measures_time_from_queued_to_start() -> None:
    q, p, d = JobState.QUEUED, JobState.PROCESSING, JobState.DOWNLOADING
    assert waits_of(history((JobState.DEPLOYING, 0), (q, 10), (d, 40), (p, 50))) == [30]
    assert waits_of(history((q, 10), (p, 20), (q, 100), (p, 160))) == [10, 60]  # it was requeued
    assert waits_of(history((q, 10), (JobState.CANCELLED, 500))) == []
    assert waits_of(history((q, 10), (JobState.PENDING, 20), (q, 30), (p, 35))) == [5]


def test_wait_summary_needs_minimum_number_of_waits() -> None:
    assert summarise([1.0] * (FEWEST - 1), "x") is None
    found = summarise([float(n) for n in range(11)], "x")
    assert found is not None
    assert (found.jobs, found.median_s, found.ninth_decile_s, found.longest_s) == (11, 5.0, 9.0, 10.0)
