"""A scheduler in memory, with faults on demand, for the tests of services. The real ones are tested elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.backend_facts import Absent, BackendFacts, BackendTraits, WaitingRequest
from ffdl_batch.domain.job.job import Token
from ffdl_batch.domain.job.learner_layout import count_gpus
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.domain.launch.launch_file import EnvDelivery, LaunchFile, LearnerCommand, Network, Succession, encode
from ffdl_batch.domain.outcome.observation import EndCause, NativeId, Observation, Phase
from ffdl_batch.domain.pending.explanation import Explanation
from ffdl_batch.domain.scheduler_errors import (
    InvalidRequest,
    NotTaken,
    NotUnderstood,
    RefusedBySite,
    SchedulerUnreachable,
    SubmissionUncertain,
    TooMany,
)
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.launch_request import AttemptNode, LaunchPlan, LaunchRequest, NodeProgram, PlannedFile


class QuietBackend:
    """What schedulers of tests need not do: no settings, no reasons of waiting jobs, no programs on nodes."""

    def effective_settings(self) -> Mapping[str, object]:
        return {}

    def explain_waiting(self, requests: Sequence[WaitingRequest]) -> Sequence[Explanation | None]:
        """Return of each only that it is in the queue."""
        return [Explanation(known_at=0.0) for _ in requests]

    def beside(self, place: AttemptNode, argv: Sequence[str]) -> NodeProgram:
        raise InvalidRequest("no program can be started on its nodes")


@dataclass
class FakeScheduler(QuietBackend):
    """`submitted` are accepted submissions in order; `down`, `refuse`, `lose_reply` make faults; `warns` makes what a
    plan warns of.

    `odd` has the words, unknown to the adapter, in which jobs are refused; `site_refuses` is a site's message.
    `unanswered` has the jobs whose submissions fail as if the scheduler did not answer.

    `spreads` gives each learner a node; `refuse_shrink` is why nodes are not taken back.

    `asked` counts questions and requests, `observe_calls` those about jobs, whatever the number of jobs in them; `full`
    turns submissions away.
    """

    name: str = "fake"
    down: bool = False
    refuse: str = ""
    full: str = ""
    fails: str = ""
    odd: dict[str, str] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)
    site_refuses: str = ""
    refuse_cancel: str = ""
    lose_reply: bool = False
    swallow: bool = False
    credential_life_s: float = 300.0
    model_bytes: int | None = None
    max_gpus: float = 4.0
    needs_dirs: tuple[str, ...] = ()
    in_containers: bool = False
    is_this_machine: bool = False
    heads_go_on: bool = True
    spreads: bool = False
    refuse_shrink: str = ""
    warns: Callable[[JobSpec], Iterable[str]] = lambda _: ("a warning of the plan",)
    planned: list[LaunchRequest] = field(default_factory=list)
    submitted: list[tuple[NativeId, Token]] = field(default_factory=list)
    seen: dict[NativeId, Observation] = field(default_factory=dict)
    cancelled: list[NativeId] = field(default_factory=list)
    withdrawn: list[NativeId] = field(default_factory=list)
    signalled: list[tuple[NativeId, str]] = field(default_factory=list)
    avoided: list[tuple[NativeId, tuple[str, ...]]] = field(default_factory=list)
    excluded: list[tuple[NativeId, str]] = field(default_factory=list)
    shrunk: list[tuple[NativeId, tuple[str, ...]]] = field(default_factory=list)
    forgotten: set[NativeId] = field(default_factory=set)
    lost: set[NativeId] = field(default_factory=set)
    turned_away: list[Token] = field(default_factory=list)
    observe_calls: int = 0
    asked: int = 0
    next_id: int = 100

    @property
    def traits(self) -> BackendTraits:
        return BackendTraits(model_bytes=self.model_bytes, credential_life_s=self.credential_life_s)

    def probe(self) -> BackendFacts:
        self._answer()
        return BackendFacts(version="fake 1", needs_image=False, is_this_machine=self.is_this_machine)

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        self.planned.append(request)
        if request.spec.resources.gpus > self.max_gpus:
            raise InvalidRequest(f"no node has {request.spec.resources.gpus:g} GPUs; the most is {self.max_gpus:g}")
        size = request.spec.resources.learners if self.spreads else 1
        launch = LaunchFile(
            learners=size,
            nodes=size,
            shrinks=self.spreads,
            job_id=request.job_id,
            attempt=request.attempt,
            token=request.token,
            job_dir=request.job_dir.path,
            attempt_dir=request.attempt_dir.path,
            doorbell=request.doorbell,
            learner=LearnerCommand(("true",), {}, EnvDelivery.FILE if self.in_containers else EnvDelivery.PROCESS),
            needs_dirs=self.needs_dirs,
            network=Network("auto", "none", "fake"),
            checkpoints=request.job_dir.checkpoints,
            carry=request.carry,
            succession=self._succession(request),
        )
        return LaunchPlan(
            backend=self.name,
            token=request.token,
            attempt_dir=request.attempt_dir,
            launch=launch,
            files=(PlannedFile("launch.json", encode(launch)), PlannedFile("script.sh", "#!/bin/sh\n", 0o700)),
            script="#!/bin/sh\n",
            environment=dict(request.user_env),
            network=Network("auto", "none", "fake"),
            warnings=tuple(self.warns(request.spec)),
        )

    def _succession(self, request: LaunchRequest) -> Succession | None:
        if not self.heads_go_on:
            return None
        return Succession(
            request.job_dir.template.path,
            budget=request.budget,
            spent=request.spent,
            gpus=count_gpus(request.spec),
            lead_s=request.lead_s,
        )

    def submit(self, plan: LaunchPlan) -> NativeId:
        self._answer()
        if self.refuse:
            raise InvalidRequest(self.refuse)
        if self.full:
            self.turned_away.append(plan.token)
            raise TooMany(self.full)
        if self.fails:
            self.turned_away.append(plan.token)
            raise NotTaken(self.fails)
        if plan.launch.job_id in self.odd:
            self.turned_away.append(plan.token)
            raise NotUnderstood(self.odd[plan.launch.job_id], "the words")
        if plan.launch.job_id in self.unanswered:
            self.turned_away.append(plan.token)
            raise SchedulerUnreachable("no answer, sbatch said")
        if self.site_refuses:
            raise RefusedBySite(self.site_refuses)
        if self.swallow:
            raise SubmissionUncertain("timed out; nothing was accepted, but nobody knows")
        native = self.accept(plan.token)
        if self.lose_reply:
            raise SubmissionUncertain("timed out after the request was accepted")
        return native

    def accept(self, token: Token) -> NativeId:
        """What the scheduler does when a request lands."""
        native = NativeId(str(self.next_id))
        self.next_id += 1
        self.submitted.append((native, token))
        self.seen[native] = Observation(Phase.PENDING, "PENDING", reason="Resources")
        return native

    def find(self, token: Token, attempt_dir: AttemptDir) -> frozenset[NativeId]:
        self._answer()
        return frozenset(native for native, known in self.submitted if known == token)

    def observe(self, ids: Collection[NativeId]) -> Mapping[NativeId, Observation]:
        self._answer()
        self.observe_calls += 1
        return {native: self.seen[native] for native in ids if native in self.seen}

    def signal(self, native_id: NativeId, signal: str) -> None:
        self._answer()
        self.signalled.append((native_id, signal))

    def withdraw(self, native_id: NativeId) -> None:
        self._answer()
        self.withdrawn.append(native_id)

    def nodes_of(self, facts: BackendFacts, partition: str) -> frozenset[str]:
        return frozenset()

    def avoid(self, native_id: NativeId, nodes: Collection[str]) -> None:
        self._answer()
        self.avoided.append((native_id, tuple(nodes)))

    def exclude_only(self, native_id: NativeId, nodes: str) -> None:
        self._answer()
        self.excluded.append((native_id, nodes))

    def shrink(self, native_id: NativeId, nodes: Sequence[str]) -> None:
        self._answer()
        if self.refuse_shrink:
            raise InvalidRequest(self.refuse_shrink)
        self.shrunk.append((native_id, tuple(nodes)))

    def cancel(self, native_id: NativeId) -> None:
        self._answer()
        if self.refuse_cancel:
            raise InvalidRequest(self.refuse_cancel)
        self.cancelled.append(native_id)

    def find_absent(self, ids: Collection[NativeId]) -> Absent:
        self._answer()
        gone = frozenset(ids) & frozenset(self.forgotten)
        return Absent(gone, gone & frozenset(self.lost))

    def end(self, native: NativeId, cause: EndCause, at: float, started: float | None = 1.0) -> None:
        """Let the scheduler report an end."""
        self.seen[native] = Observation(Phase.ENDED, cause.upper(), cause, started_at=started, ended_at=at)

    def run(self, native: NativeId, nodes: str = "n1", restarts: int = 0) -> None:
        """Let the scheduler report that the job runs."""
        self.seen[native] = Observation(Phase.RUNNING, "RUNNING", nodes=nodes, started_at=1.0, restarts=restarts)

    def wait(
        self,
        native: NativeId,
        reason: str = "BeginTime",
        restarts: int = 0,
        held_for_good: bool = False,
        nowhere: bool = False,
    ) -> None:
        """Let the scheduler report that the job waits."""
        self.seen[native] = Observation(
            Phase.PENDING, "PENDING", reason=reason, restarts=restarts, held_for_good=held_for_good, nowhere=nowhere
        )

    def _answer(self) -> None:
        self.asked += 1
        if self.down:
            raise SchedulerUnreachable("Unable to contact slurm controller")
