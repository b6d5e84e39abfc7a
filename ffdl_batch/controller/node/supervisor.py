"""ControlPoller the learners of one node: signals, requests to end, limits, and the end of each learner."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from typing import Dict, Sequence, Tuple

from ffdl_batch.attempt.log_tail import tail
from ffdl_batch.attempt.phase_files import Fenced
from ffdl_batch.controller.become import VICTIM
from ffdl_batch.controller.checkpoints import PATIENCE_S, CheckpointRecord
from ffdl_batch.controller.data.result_storage import Uploading
from ffdl_batch.controller.job_network import FAULT, HOST, NamespaceCheck
from ffdl_batch.controller.job_network import FAULT as NETWORK_CODE
from ffdl_batch.controller.learner.environment import EnvironmentRefused
from ffdl_batch.controller.learner.learner import Ending, Learner
from ffdl_batch.controller.learner.orphans import end_leftovers
from ffdl_batch.controller.learner.restarts import Restarts, Spawned
from ffdl_batch.controller.metrics.monitor import Monitor
from ffdl_batch.controller.mounts.node_mounts import DATA_CODE, NodeMounts
from ffdl_batch.controller.node.control_poller import ControlPoller
from ffdl_batch.controller.node.learner_requests import FILES_S, HURRY_S, LearnerRequests
from ffdl_batch.controller.node.learner_setup import LearnerSetup
from ffdl_batch.controller.node.service_learners import DOUBT_S, SERVICE, Failed, Services
from ffdl_batch.controller.own_program import module_argv
from ffdl_batch.controller.rendezvous.node_barrier import OtherNodes, notify_others
from ffdl_batch.domain.codec import to_plain
from ffdl_batch.domain.launch.launch_file import EnvDelivery, LaunchFile
from ffdl_batch.domain.launch.network_level import OVERLAYS, is_unreachable
from ffdl_batch.domain.launch.placeholders import LaunchFileError
from ffdl_batch.domain.launch.pod_protocol import NO_BASH
from ffdl_batch.domain.outcome.controller_events import RELEASED, EventKind, Scalar
from ffdl_batch.host import nonblocking_stderr
from ffdl_batch.host.processes import adopt_orphans, end_strays, identity
from ffdl_batch.host.worker_thread import WorkerThread

IMAGE_COMPLAINTS = (
    "could not open image",
    "image format",
    "squashfs",
    "executable file not found",
    ".sif",
    "container registry",
)
REGISTRY_COMPLAINTS = ("registry", "docker://", "oras://", "library://", "https://")
_SILENT = re.compile(r"i/o timeout|connection (?:refused|reset)|handshake timeout|deadline exceeded|awaiting headers")
"""What Go, in which Apptainer is written, prints about a host that does not answer."""
NETWORK_COMPLAINTS = (
    "netns",
    "network namespace",
    "/net: permission denied",
    "/net: no such file",
    "cni plugin",
    "apptainer.conf",  # the setuid starter, which alone creates networks, rejects the file
)
IMAGE_CODE, RUNTIME_CODE = "S103", "S105"
_CURE = (
    "; to join a job's network, Apptainer needs settings in apptainer.conf and its setuid starter: the program `check` "
    "of slurm-configs/libexec shows on that node which is missing (docs/network.md)"
)


def read_complaint(launch: LaunchFile, lines: Sequence[str], host: str) -> Tuple[str, str]:
    """Return a sentence with the last lines of output, and the error code."""
    output = " ".join(line.strip() for line in lines[-3:]) or "it printed nothing"
    if launch.pod is not None:
        code = IMAGE_CODE if NO_BASH in output else RUNTIME_CODE
        return f"the learner's container in pod {host} did not reach its command: {output}", code
    if launch.learner.delivery is not EnvDelivery.FILE:
        return f"the learner's shell did not start on {host}: {output}", RUNTIME_CODE
    if launch.network.level != HOST and any(word in output.lower() for word in NETWORK_COMPLAINTS):
        cure = _CURE if launch.network.level in OVERLAYS else ""
        return f"the container runtime refused network level {launch.network.level} on {host}: {output}{cure}", FAULT
    is_silent = is_unreachable(output) or _SILENT.search(output) is not None
    if is_silent and any(word in output.lower() for word in REGISTRY_COMPLAINTS):
        return f"the image cannot be fetched on {host}, because its registry cannot be reached: {output}", RUNTIME_CODE
    if any(word in output.lower() for word in IMAGE_COMPLAINTS):
        return f"the image cannot be used on {host}: {output}", IMAGE_CODE
    return f"the container runtime failed on {host}: {output}", RUNTIME_CODE


TICK_S = 0.2
DOUBT_DATA_S = 2.0
"""Seconds to wait, after a learner failed, for a report that a mount is gone, which would explain the failure."""


class Supervisor:
    """Owns the started learners until the last has ended. Times are of the poller's clock."""

    def __init__(
        self,
        seats: LearnerSetup,
        siblings: OtherNodes,
        watch: ControlPoller,
        record: CheckpointRecord,
        meter: Monitor,
        mounting: NodeMounts,
    ) -> None:
        self.launch, self.journal, self.watch, self.record = seats.launch, siblings.journal, watch, record
        self.seats, self.meter = seats, meter
        self.mounting = mounting
        self.clock = watch.clock
        self.learners: Dict[int, Learner] = {}
        self.status = 0
        self._started = False
        self._files = WorkerThread("files")
        self.asking = LearnerRequests(self.learners, watch, record, self.journal, self._files, self._drop_restarts)
        self.services = Services(self.launch, siblings, self._files)
        self.networks = NamespaceCheck(self.launch, seats.network)
        self._network_recorded = False
        self._uploading = Uploading(self.launch, seats.node_rank)
        self.restarts = Restarts(self.launch, self.journal.events, self._files, self._spawn_again)

    def start(self, learner_id: int) -> None:
        """Start one learner. If that fails, it has ended, and the other nodes are notified.

        :meth:`run` writes the event of the start, without waiting for the file system.
        """
        if self.asking.ending:
            return
        adopt_orphans()
        self._started = True
        try:
            learner = Learner.spawn(self.seats.start(learner_id, self.restarts.of(learner_id)), self.clock, self.watch)
        except (OSError, subprocess.SubprocessError, LaunchFileError, EnvironmentRefused) as error:
            self._not_started(learner_id, error)
            return
        self.learners[learner_id] = learner

    def _spawn_again(self, learner_id: int) -> Learner:
        """Start a learner again, in the worker's thread."""
        end_leftovers(learner_id)
        start = self.seats.start(learner_id, self.restarts.of(learner_id))
        options = (VICTIM,) if start.seat is None else ()
        return Learner.spawn(start, self.clock, self.watch, [*module_argv("ffdl_batch.controller.become"), *options])

    def _not_started(self, learner_id: int, error: Exception) -> None:
        detail = f"learner {learner_id} cannot be started on {os.uname().nodename}: {error}"
        code = "C101" if isinstance(error, EnvironmentRefused) else RUNTIME_CODE
        self._ended(Ending(learner_id, None, began=False, detail=detail, code=code))

    def run(self) -> int:
        """Watch the learners until all have ended. Return the status of the first that failed, else 0. Raises Fenced.

        Nothing here waits for the shared file system, which may hang, because learners must be ended in time.
        """
        self.watch.begin()
        self.journal.begin()
        self._files.begin()
        nonblocking_stderr.begin()
        self._uploading.begin()
        self.meter.begin(self._roots, dict(zip(self.seats.learner_ids, self.seats.devices)))
        try:
            for learner_id, learner in self.learners.items():
                self._record_start(learner_id, learner)
            while self.learners or self.restarts.pending or self.services.failed:
                self._handle_requests()
                self._mind_services()
                self._mind_resources()
                self._check_networks()
                for learner_id in [number for number in self.learners if self.watch.inner_pid(number)]:
                    self.seats.hide(learner_id)
                for learner_id, spawned in self.restarts.start_due(self.clock.now()):
                    self._started_again(learner_id, spawned)
                for ending in [e for e in (learner.poll() for learner in self.learners.values()) if e]:
                    del self.learners[ending.learner_id]
                    self._ended(ending)
                self.journal.flush()
        finally:
            self._uploading.finish()
            end_strays(self.meter.pids | self.mounting.pids)
            self.meter.finish_soon()
        if self._started:
            self._record_network()
            patience_s = HURRY_S if self.asking.terminated_at is not None else PATIENCE_S
            self.journal.append(EventKind.CHECKPOINT, **to_plain(self.record.result(patience_s)))
        return self.status

    def _roots(self) -> Dict[int, int]:
        """Return the root process of each learner. Another thread calls this."""
        roots = {number: learner.root for number, learner in dict(self.learners).items()}
        return {number: root for number, root in roots.items() if root}

    def _record_start(self, learner_id: int, learner: Learner) -> None:
        service: Dict[str, Scalar] = {"service": True} if self.services.is_one(learner_id) else {}
        self.journal.append(EventKind.LEARNER_STARTED, learner_id=learner_id, **identity(learner.pid), **service)

    def _started_again(self, learner_id: int, spawned: Spawned) -> None:
        if isinstance(spawned, Exception):
            self._not_started(learner_id, spawned)
            return
        self.learners[learner_id] = spawned
        self._record_start(learner_id, spawned)

    # ------------------------------------------------------------------------------------------ one turn

    def _handle_requests(self) -> None:
        closing = any(learner.rest_until or learner.kill_at for learner in self.learners.values())
        hurries = closing or self.networks.hurries(self.learners)
        self.asking.take_signals(0.05 if hurries else TICK_S)
        try:
            self.asking.obey_cells()
        except Fenced:
            self.restarts.drop()
            raise
        self.asking.press()

    def _check_networks(self) -> None:
        """Kill learners that are not in the planned network. The job fails then."""
        for learner_id in self.networks.look(self.learners, self.clock.now()):
            self.learners[learner_id].kill("")
        if self.networks.has_seen:
            self._record_network()

    def _record_network(self) -> None:
        if not self._network_recorded and not self.networks.wrong:
            self._network_recorded = True
            self.journal.append(EventKind.NETWORK, **self.networks.achieved())

    def _mind_services(self) -> None:
        """End the services of this node when no learner trains any more. One that failed before fails the job."""
        now, failed = self.clock.now(), self.services.failed
        some_train = self.restarts.pending or not all(self.services.is_one(number) for number in self.learners)
        asked = self.asking.request is not None
        if not some_train and not self.asking.ending and self.services.are_free(now, asked=asked):
            self.services.failed = None
            self.asking.ending = SERVICE
            for learner in self.learners.values():
                if not learner.signals_sent:  # after a checkpoint request they have the time of the request
                    learner.terminate(SERVICE, now + self.launch.limits.kill_wait_s)
        elif failed and (self.asking.ending or self.asking.request or now - failed.at >= DOUBT_S):
            self.services.failed = None
            self.status = self.status or failed.status
            if self.asking.is_quiet:
                self._fail(failed.learner_id)

    def _mind_resources(self) -> None:
        """Kill the learners if a mount is gone, because they would read errors or nothing. Request a checkpoint
        and their end if their GPUs were idle for too long."""
        if self.mounting.failure() and self.asking.is_quiet:
            for learner in self.learners.values():
                learner.kill("")
        if self.meter.idle_gpus.exceeded:
            self.asking.ask_idle(self.meter.idle_gpus.exceeded)

    # ------------------------------------------------------------------------------------------ endings

    def _ended(self, ending: Ending) -> None:
        """Record the end of a learner. A failure ends the job, unless the learners must end or leave."""
        if ending.failed and not ending.asked and self._leaves():
            ending = replace(ending, ended_by=RELEASED)
        fields: Dict[str, Scalar] = {"learner_id": ending.learner_id, "began": ending.began}
        code = ending.returncode
        if code is not None and code < 0:
            fields["signal"] = -code
        else:
            fields["exit_code"] = 127 if code is None else code
        fields["out_of_memory"] = ending.out_of_memory
        fields.update(ended_by=ending.ended_by, asked=ending.asked, signalled=ending.signalled)
        detail, fault = ending.detail, ending.code
        if ending.learner_id in self.networks.wrong:
            detail, fault = self.networks.wrong[ending.learner_id], NETWORK_CODE
        elif ending.failed and not ending.asked and self.mounting.failure(DOUBT_DATA_S):
            detail, fault = f"learner {ending.learner_id} lost its data: {self.mounting.failure()}", DATA_CODE
        elif ending.failed and not ending.began and not fault:
            detail, fault = self._complaint(ending)
        fields.update({k: v for k, v in (("detail", detail), ("code", fault)) if v})
        is_service = self.services.is_one(ending.learner_id)
        if is_service:
            fields["service"] = True
        if not is_service and not fault and self._may_start_again(ending):
            self.journal.append(EventKind.LEARNER_ENDED, **fields, restarted=True)
            self.restarts.add(ending.learner_id, fields, self.clock.now())
            return
        self.meter.learner_ended(ending.learner_id)
        if not (is_service and ending.ended_by):  # the end of a service is no answer to a request
            self.record.ended(self.clock.now(), by_itself=not ending.ended_by)
        self.journal.append(EventKind.LEARNER_ENDED, **fields)
        if ending.failed:
            self._failed(ending, is_service)

    def _leaves(self) -> bool:
        """Return whether the learners of this node must leave the job. Read the request again, because a learner may
        fail before the request is noticed if those of another node have left."""
        self.watch.read_now()
        return self.watch.is_released

    def _failed(self, ending: Ending, is_service: bool) -> None:
        code = ending.returncode
        status = 127 if code is None else code if code > 0 else 128 - code
        if is_service and ending.asked:
            return
        if is_service and ending.began:  # perhaps because its peers were done, which is known soon
            self.services.failed = self.services.failed or Failed(ending.learner_id, status, self.clock.now())
            return
        self.status = self.status or status
        if not ending.asked:
            self._fail(ending.learner_id)

    def _fail(self, learner_id: int) -> None:
        """End all learners of the job, because one has failed."""
        self._files.ask(lambda: notify_others(self.launch, learner_id=learner_id), None, FILES_S)
        self.asking.end_all("stop")

    def _may_start_again(self, ending: Ending) -> bool:
        """Return whether the learner failed after it had begun, without a request to end."""
        at_work = ending.failed and ending.began and not ending.asked
        return at_work and self.asking.is_quiet and self.restarts.possible

    def _drop_restarts(self, reason: str) -> None:
        """Record the end of learners that wait to be restarted, for `reason`."""
        for _, fields in self.restarts.drop():
            self.record.ended(self.clock.now(), by_itself=False)
            self.journal.append(EventKind.LEARNER_ENDED, **{**fields, "ended_by": reason, "waited": True})

    def _last_lines(self, learner_id: int) -> Tuple[str, ...]:
        try:
            return self._files.ask(lambda: tail(self.watch.attempt.training_log(learner_id)), (), FILES_S)
        except OSError as error:
            return (f"its log cannot be read: {error}",)

    def _complaint(self, ending: Ending) -> Tuple[str, str]:
        """Return why the user's command was not reached, and the error code."""
        return read_complaint(self.launch, self._last_lines(ending.learner_id), os.uname().nodename)
