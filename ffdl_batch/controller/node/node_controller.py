"""The node controller: owns the learners of one node from unpacking the model to storing their results."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from typing import Callable, Dict, Optional, Tuple

from ffdl_batch.attempt.conclusion import EXIT_PLATFORM
from ffdl_batch.attempt.control_cell import CANCEL, own_run
from ffdl_batch.attempt.event_journal import Journal
from ffdl_batch.attempt.file_writer import create_empty, make_private
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.learner_endings import unreported_ends
from ffdl_batch.attempt.phase_files import Ended, Fenced, PhaseFailed, PhaseFiles, note
from ffdl_batch.controller.checkpoints import FROM_OUTSIDE, STORE_SHARE, CheckpointRecord, ask_others
from ffdl_batch.controller.data.cache_entries import find_image, has_links
from ffdl_batch.controller.data.input_loading import NodeData, find_data, load_data, load_model
from ffdl_batch.controller.data.job_directories import remove_scratch
from ffdl_batch.controller.data.result_storage import store_logs, store_results
from ffdl_batch.controller.data.transfer_progress import show_moving
from ffdl_batch.controller.data.transfers import STORING, check_results_store
from ffdl_batch.controller.learner.pod_exchange import await_container
from ffdl_batch.controller.learner.restarts import restarts_left
from ffdl_batch.controller.metrics.monitor import END_S, Monitor
from ffdl_batch.controller.mounts.node_mounts import clear_left
from ffdl_batch.controller.node.control_poller import ControlPoller, InterruptionCheck
from ffdl_batch.controller.node.health_findings import HealthFindings
from ffdl_batch.controller.node.image_signature import check_signature
from ffdl_batch.controller.node.learner_requests import HURRY_S
from ffdl_batch.controller.node.learner_setup import LearnerSetup
from ffdl_batch.controller.node.phase_runner import OutOfTime, PhaseRunner
from ffdl_batch.controller.node.service_learners import SERVICE, at_work, has_trained, left_behind
from ffdl_batch.controller.node.supervisor import Supervisor
from ffdl_batch.controller.own_program import machine_of
from ffdl_batch.controller.rendezvous.learner_addresses import LOOPBACK, await_free, ports_on
from ffdl_batch.controller.rendezvous.node_barrier import (
    NodeBarrier,
    NodeReport,
    OtherNodes,
    notify_others,
    own_address,
)
from ffdl_batch.domain.data.staging_protocol import UNREADABLE_CODE
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.outcome.controller_events import HALT, EventKind, Phase, Scalar
from ffdl_batch.host.permissions import umask_set
from ffdl_batch.host.signals import next_signal

STORE_AGAIN_S, STORE_AGAIN_MOST_S = 5.0, 60.0
"""Seconds between two attempts to store what cannot be stored later: the first pause, and the longest."""


def fail(launch: LaunchFile, node_rank: int, journal: Journal, code: str, message: str, fault_class: str = "") -> int:
    """Report why this node ends, also to the other nodes. Return the exit code."""
    journal.append(EventKind.FAULT, code=code, message=message, **{"class": fault_class})
    notify_others(launch, node_rank=node_rank)
    return EXIT_PLATFORM


class Node:
    """One run of the node controller."""

    def __init__(self, launch: LaunchFile, launch_path: str, node_rank: int, journal: Journal) -> None:
        self.launch, self.node_rank, self.journal = launch, node_rank, journal
        self.attempt = AttemptDir(launch.attempt_dir)
        self.phases = PhaseFiles(self.attempt.state)
        self.seats = LearnerSetup(launch, launch_path, node_rank)
        self.siblings = OtherNodes(launch, node_rank, journal)
        self.watch = ControlPoller(launch, node_rank, self.seats.learner_ids)
        self._terminated_at: Optional[float] = None
        self._health = HealthFindings(launch.health, journal)
        again, clock = self._health.look_again, self.watch.clock.now
        self._meter = Monitor(launch, node_rank, self.seats.learner_ids, journal, again, clock)
        self._attention = InterruptionCheck(journal, self.watch, self.phases)
        self._data = NodeData(launch, node_rank, self.seats.scratch, journal)
        self._runner = PhaseRunner(launch, self.phases, journal, self._health)

    def report_found(self) -> None:
        """Report learners that ended after an earlier controller was killed."""
        for number, status in unreported_ends(self.journal.earlier, self.phases, self.seats.learner_ids).items():
            is_service = self.launch.seat_of(number).service
            again = status != 0 and not is_service and restarts_left(self.launch, self.journal.events) > 0
            self._record_end(number, exit_code=status, **({"restarted": True} if again else {}))

    def _record_end(self, learner_id: int, **more: Scalar) -> None:
        """Record the end of a learner that is not a child of this controller."""
        fields: Dict[str, Scalar] = {"out_of_memory": False, "began": True, "ended_by": "", "asked": ""}
        if self.launch.seat_of(learner_id).service:
            fields["service"] = True
        self.journal.append(EventKind.LEARNER_ENDED, learner_id=learner_id, **{**fields, "signalled": False, **more})

    def run(self) -> int:
        """Run all phases in order. Return the exit code."""
        make_private(self.seats.scratch)
        go_on = self._attention.go_on
        self.seats.clear_earlier()
        clear_left()
        try:
            try:
                self._runner.patiently(self._prepare, self._attention.go_on, awaits_space=True)
                self.seats.find_network(self._attention.rest, self.watch.clock.now)
                self.seats.equip(self.journal, self._attention.go_on)
                self._find_image()
                self._check_stores()
                self._load(Phase.LOAD_MODEL, lambda: load_model(self.launch, go_on), "S301")
                self._load(Phase.LOAD_DATA, lambda: load_data(self.launch, self._data, go_on), "S302")
                self._find_data()  # this node may lack mounts that the first node has
                if self.launch.only_stages:
                    return 0
                self._open()
                self._meet()
                self._attention.check()
                done = self._runner.patiently(self.siblings.ended_of_themselves, self._attention.go_on)
            except PhaseFailed as failed:
                self._health.look(time.time(), failed=True)
                return fail(self.launch, self.node_rank, self.journal, failed.code, str(failed), failed.fault_class)
            except Ended as ended:
                self.journal.append(EventKind.FAULT, code="", message=str(ended), ended_by=ended.reason)
                if ended.reason in FROM_OUTSIDE:
                    ask_others(self.launch)
                return 128 + signal.SIGTERM
            status = self._learners(done)
            self._data.mounting.finish()
            ended_at = time.time()
            stored = self._store()
            is_bad = status != 0 or not stored
            self._health.await_look(ended_at, is_bad, lambda: status != 0 and self._may_wait())
            return status or (0 if stored else EXIT_PLATFORM)
        finally:
            self._meter.finish(0.0)
            self.watch.finish()
            self._data.mounting.finish()
            remove_scratch(self.seats.scratch)

    def _prepare(self) -> None:
        for directory in (self.attempt.state, self.attempt.model, self.attempt.data, self.attempt.results):
            os.makedirs(directory, exist_ok=True)
        for number in self.seats.learner_ids:
            os.makedirs(self.attempt.learner_logs(number), exist_ok=True)
            with umask_set(self.launch.umask):
                create_empty(self.attempt.training_log(number), 0o666)
        self.phases.announce(self.launch.job_id, 1)

    # ------------------------------------------------------------------------------------------ loading

    def _find_image(self) -> None:
        """Raises PhaseFailed."""
        go_on, launch, rank = self._attention.go_on, self.launch, self.node_rank
        image = self._runner.patiently(
            lambda: find_image(launch, rank, go_on, self._data.entries), go_on, awaits_space=True
        )
        self.seats.base["image"] = image
        if launch.signature is not None:
            check_signature(launch.signature, os.path.join(self.seats.scratch, "keys"), self._attention.rest)

    def _check_stores(self) -> None:
        """Check the results store before anything is loaded. Raises PhaseFailed."""
        go_on = self._attention.go_on
        if self.node_rank == 0 and self._runner.patiently(lambda: self.phases.status(Phase.LOAD_DATA), go_on) != 0:
            self._runner.patiently(lambda: check_results_store(self.launch, 0, go_on), go_on, awaits_space=True)

    def _load(self, phase: Phase, work: Callable[[], None], code: str) -> None:
        """Run the phase on rank 0, unless it is done. Other ranks wait for it if they share its files."""
        if self.node_rank != 0 and not self.launch.apart:
            self._await(phase)
            if phase is Phase.LOAD_DATA and self.launch.mounts is not None:
                self._runner.patiently(self._follow, self._attention.go_on, awaits_space=True)
            return
        is_done = self._runner.patiently(lambda: self.phases.status(phase), self._attention.go_on) == 0
        is_gone = phase is Phase.LOAD_DATA and (has_links(self.launch) or self.launch.mounts is not None)
        if is_done and not is_gone:
            return
        self._runner.run(phase, lambda: self._runner.patiently(work, self._attention.go_on, awaits_space=True), code)

    def _follow(self) -> None:
        """Mount or copy the data as the first node did."""
        self._data.follow(self.siblings.events([0]), self._attention.go_on)

    def _find_data(self) -> None:
        try:
            self._runner.patiently(lambda: find_data(self.launch), self._attention.go_on)
        except OSError as error:
            raise PhaseFailed("S302", f"the data on node {machine_of(self.launch)} cannot be read: {error}") from error

    def _await(self, phase: Phase) -> None:
        while True:
            status = self._runner.patiently(lambda: self.siblings.phase_status(0, phase), self._attention.go_on)
            if status == 0:
                return
            if status is not None:
                raise Ended("stop", f"{phase.value} failed on the first node")
            self._attention.rest()

    def _open(self) -> None:
        """Start the learner's container and wait for it, in a pod."""
        if self.seats.seat is not None:
            await_container(self.seats.seat, self._attention.rest)

    def _meet(self) -> None:
        """Wait until all nodes are ready, if they need each other's addresses."""
        self._runner.patiently(self.seats.prepare, self._attention.go_on, awaits_space=True)
        if self.launch.nodes > 1 and not self.launch.names:
            return
        self._await_ports()
        own = self.seats.network.address if self.seats.network else self.seats.given_address
        addresses: Tuple[str, ...] = (own or LOOPBACK,)
        if self.launch.nodes > 1:
            addresses = self._gather(own_run(os.environ), own)
        self._runner.patiently(lambda: self.seats.meet(addresses), self._attention.go_on, awaits_space=True)

    def _await_ports(self) -> None:
        """Wait until the ports of the learners that will start are free. Raises PhaseFailed if they stay in use."""
        ports = self._runner.patiently(
            lambda: ports_on(self.launch, self.node_rank, self.attempt), self._attention.go_on
        )
        if ports and own_run(os.environ) > 1:
            done = self._runner.patiently(self.siblings.ended_of_themselves, self._attention.go_on)
            ports = ports if at_work(self.launch, self.seats.learner_ids, done) else []
        await_free(ports, self._attention.rest)

    def _gather(self, run: int, own: str) -> Tuple[str, ...]:
        """Return the addresses of all nodes. `own` is this node's, "" if it is not known yet."""

        def read(rank: int) -> NodeReport:
            return self._runner.patiently(lambda: self.siblings.report(rank), self._attention.go_on)

        gathering = NodeBarrier(self.launch, self.node_rank, run, read, self._attention.rest, self.watch.clock.now)
        own = own or own_address(gathering.await_neighbour())
        self.journal.append(EventKind.READY, host=os.uname().nodename, address=own, run=run)
        return gathering.await_addresses(own)

    # ----------------------------------------------------------------------------------------- learners

    def _learners(self, done: Dict[int, int]) -> int:
        """Run the learners that have not ended yet. `done` has the status of the others. Return an exit code."""
        self.journal.append(EventKind.PHASE, phase=Phase.LEARNER.value, status="started")
        note(lambda: self.phases.begin(Phase.LEARNER))
        record = CheckpointRecord(self.launch.checkpoints, self.launch.job_dir)
        record.begin()
        supervisor = Supervisor(self.seats, self.siblings, self.watch, record, self._meter, self._data.mounting)
        working = at_work(self.launch, self.seats.learner_ids, done)
        for number in working:
            supervisor.start(number)
        for number in self.seats.learner_ids:
            if number not in working:
                self._meter.learner_ended(number)
        for number in left_behind(self.launch, self.seats.learner_ids, self.journal.events, done):
            self._record_end(number, ended_by=SERVICE, detail="no controller saw its end")
        own = [status for number, status in done.items() if number in self.seats.learner_ids and status]
        status = supervisor.run() or (0 if has_trained(self.launch, done) else next(iter(own), 0))
        self._terminated_at = supervisor.asking.terminated_at
        if self._is_last() or status:
            note(lambda: self.phases.end(Phase.LEARNER, status))
        self.journal.append(EventKind.PHASE, phase=Phase.LEARNER.value, status="ended", exit=status)
        return status

    def _may_wait(self) -> bool:
        """Wait a moment after storing. Return whether waiting is allowed: no end was requested. Raises Fenced."""
        time.sleep(0.2)
        self._go_on_storing()
        requested = self.watch.control.requested_action or self.watch.stop.get("what") == HALT
        return self._terminated_at is None and not requested

    # ------------------------------------------------------------------------------------------ storing

    def _store(self) -> bool:
        """Store results and logs of this node's learners.

        Write a STORED event for each. Return whether it succeeded.
        """
        is_written = self.journal.flush()
        last = self._is_last()
        shared = last or not is_written or not self._others_will_store()
        work: Dict[Phase, Callable[[], None]] = {
            Phase.STORE_RESULTS: lambda: store_results(
                self.launch, self._go_on_storing, node_rank=self.node_rank, sends=shared, journal=self.journal
            ),
            Phase.STORE_LOGS: self._store_logs,
        }
        failed: Optional[PhaseFailed] = None
        end = self.watch.clock.now() + (
            self.launch.pod.store_patience_s if self.launch.pod and self.launch.apart else 0
        )
        for phase, action in work.items():
            store = partial(self._outlast, partial(self._runner.patiently, action, self._go_on_storing), end)
            try:
                self._runner.run(phase, store, "S303", last=last)
            except PhaseFailed as error:
                failed = failed or error
        if failed is not None:
            if failed.code:
                message = f"{failed}; it is lost with the pod" if self.launch.apart else str(failed)
                self.journal.append(EventKind.FAULT, code=failed.code, message=message, **{"class": failed.fault_class})
            else:
                sys.stderr.write(f"ffdl-controller: {failed}\n")
            return False
        stored = self.seats.learner_ids if not self.launch.cut_off or not self.launch.uploads else ()
        for number in stored:  # of the others, the process that stores them writes the event
            self.journal.append(EventKind.STORED, learner_id=number)
        return True

    def _outlast(self, store: Callable[[], None], end: float) -> None:
        """Retry until `end`, or until the job is cancelled, because data that are not stored are lost with the pod.

        Raises what `store` raises last.
        """
        pause_s = STORE_AGAIN_S
        while True:
            try:
                return store()
            except PhaseFailed as failed:
                now = self.watch.clock.now()
                is_final = failed.code == UNREADABLE_CODE or now + pause_s > end
                if is_final or self.watch.control.requested_action == CANCEL:
                    raise
                message = f"{failed}; it is tried again in {pause_s:g} s"
                sys.stderr.write(f"ffdl-controller: {message}\n")
                if self.node_rank == 0:
                    show_moving(self.attempt.moving, STORING, message)
            until, pause_s = now + pause_s, min(2 * pause_s, STORE_AGAIN_MOST_S)
            while self.watch.clock.now() < until and self.watch.control.requested_action != CANCEL:
                time.sleep(0.2)
                self._go_on_storing()

    def _store_logs(self) -> None:
        self._meter.finish(HURRY_S if self._terminated_at is not None else END_S)
        store_logs(self.launch, self.seats.learner_ids, self._go_on_storing, node_rank=self.node_rank)

    def _others_will_store(self) -> bool:
        """Return whether another node, the one whose learners end last, will store what all learners share.

        That requires that every learner has started. If that node dies, the upload stays pending. The first node, and a
        node that shares nothing, always store themselves.
        """
        if self.node_rank == 0 or self.launch.apart:
            return False
        try:
            return self.siblings.all_learners_started()
        except OSError as error:
            sys.stderr.write(f"ffdl-controller: {error}\n")
            return False

    def _is_last(self) -> bool:
        """Return whether no learner of the job is left, or none of this node if nodes do not share files.

        Return False if that is unknown.
        """
        if self.launch.apart:
            return True
        try:
            return self.siblings.all_learners_ended()
        except OSError as error:
            sys.stderr.write(f"ffdl-controller: {error}\n")
            return False

    def _go_on_storing(self) -> None:
        """Check between two steps of storing whether it must end. Raises OutOfTime, Fenced."""
        number = next_signal(0.0)
        while number is not None:
            if number in (signal.SIGTERM, signal.SIGINT) and self._terminated_at is None:
                self._terminated_at = self.watch.clock.now()
            number = next_signal(0.0)
        if self.watch.fenced:
            self.watch.read_now()  # no learner writes any more, so silence alone does not forbid storing
        if self.watch.superseded:
            raise Fenced(self.watch.superseded)
        if self._terminated_at is not None:
            spent_s = self.watch.clock.now() - self._terminated_at
            if spent_s > self.launch.limits.kill_wait_s * STORE_SHARE:
                raise OutOfTime(f"storing was cut short {spent_s:.0f} s after TERM; the rest is a pending upload")
