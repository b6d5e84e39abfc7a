"""Read what the daemon requests of a pod, and answer requests for tables and stacks of its learners.

kubelet keeps the pod's annotations in files. If no command may run in the pod (``pods/exec``), an annotation asks for
tables and stacks, and the pod prints them.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from typing import Callable, Dict, List, Mapping

from ffdl_batch.attempt.file_writer import read_text, write_cell, write_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.learner_endings import ended_of_itself, learner_status
from ffdl_batch.attempt.reader import find_object, find_text
from ffdl_batch.controller.attach.helper import LearnerTable, await_agents, describe_absent
from ffdl_batch.controller.learner.agents import Agent, dump
from ffdl_batch.domain.file_format import NewerFormat
from ffdl_batch.domain.launch.attach_protocol import STACK, TOP
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.pod_protocol import Answer, Look, PodAnnotation, decode_look, encode_answer, unpack
from ffdl_batch.domain.outcome.controller_events import HEAD, EventKind, decode_events, node_source
from ffdl_batch.host.nonblocking_stderr import ErrorReporter

LONGEST_CHARACTERS = 1 << 19
"""Maximum length of stacks that are printed into a container's log."""


class Answers:
    """Answers requests for tables and stacks of one node, one at a time in a thread, because py-spy is slow."""

    def __init__(self, launch: LaunchFile, index: int, report: Callable[[str, bytes], None]) -> None:
        """`report` gets the id of a request and its answer."""
        self._launch, self._own, self._report = launch, frozenset(launch.learners_on(index)), report
        self._thread = threading.Thread()

    def begin(self, look: Look) -> bool:
        """Begin to answer. Return False if another answer is not complete yet."""
        if self._thread.is_alive():
            return False
        self._thread = threading.Thread(target=self._answer, args=(look,), name="look", daemon=True)
        self._thread.start()
        return True

    def _answer(self, look: Look) -> None:
        try:
            found = self.see(look)
        except Exception as error:  # noqa: BLE001 - the command that waits gets the error, and the training continues
            found = Answer(1, refused=f"nothing can be seen: {type(error).__name__}: {error}")
        self._report(look.id, encode_answer(found))

    def see(self, look: Look) -> Answer:
        """Return the answer. Waits a few seconds for learners that are being started."""
        learners = [number for number in look.learners if number in self._own]
        agents = await_agents(self._launch.job_id, self._launch.attempt, learners)
        if not agents:
            return Answer(1, refused=describe_absent(self._launch.job_id, self._launch.attempt, look.learners))
        present = [agents[number] for number in sorted(agents)]
        if look.do == STACK:
            return _stacks(present)
        if look.do == TOP:
            table = {"host": os.uname().nodename, "learners": [LearnerTable(agent).look() for agent in present]}
            return Answer(table=table)
        return Answer(1, refused=f"this release of ffdl-controller cannot show {look.do!r}")


def _stacks(agents: List[Agent]) -> Answer:
    found = [dump(agent) for agent in agents]
    text = "".join(said for said, _ in found)
    if len(text) > LONGEST_CHARACTERS:
        text = f"{text[:LONGEST_CHARACTERS]}\n(cut here)\n"
    return Answer(0 if all(complete for _, complete in found) else 1, text)


SIGNALLED = "signalled"
"""File in the pod's directory with the number of the last signal that was passed on."""
_EVENTS = re.compile(r"events/(head|node-\d+)\.jsonl", re.ASCII)
_SIGNAL = re.compile(r"(\d{1,15}) ([A-Z0-9]{1,12})", re.ASCII)


class DaemonRequests:
    """Reads the pod's annotations and carries out what is new in them."""

    def __init__(
        self,
        launch: LaunchFile,
        index: int,
        directory: str,
        send_again: Callable[[Mapping[str, int]], None],
        send_signal: Callable[[str], bool],
        show: Callable[[Look], bool],
    ) -> None:
        """`send_again`, `send_signal` and `show` carry out requests. The last two return whether they could."""
        self._launch, self._index, self._directory = launch, index, directory
        self._attempt = AttemptDir(launch.attempt_dir)
        self._send_again, self._send_signal, self._show = send_again, send_signal, show
        self._signalled = os.path.join(launch.pod.directory if launch.pod else launch.job_dir, SIGNALLED)
        self._seen: Dict[PodAnnotation, str] = {}
        self._written: Dict[str, str] = {}
        self._errors = ErrorReporter("")

    def look(self) -> None:
        """Read the annotations and carry out new requests."""
        steps = {
            PodAnnotation.CONTROL: self._control,
            PodAnnotation.SIBLINGS: self._siblings,
            PodAnnotation.RESEND: self._resend,
            PodAnnotation.SIGNAL: self._signal,
            PodAnnotation.LOOK: self._look,
        }
        for request, obey in steps.items():
            try:
                text = read_text(os.path.join(self._directory, request.value)).strip()
                if text and self._seen.get(request) != text and obey(text):
                    self._seen[request] = text
            except (OSError, ValueError, TypeError, AttributeError) as error:
                self._errors.report(error, f"the request {request.value} cannot be carried out: ")

    def _control(self, text: str) -> bool:
        if isinstance(json.loads(text), dict) and text != find_text(self._attempt.control).strip():
            write_text(self._attempt.control, text + "\n")
        return True

    def _siblings(self, text: str) -> bool:
        """Write the other pods' events into this pod's tree, unless pods share the tree."""
        if not self._launch.apart:
            return True
        for name, content in json.loads(unpack(text)).items():
            if self._is_anothers(name) and self._written.get(name) != content:
                write_text(os.path.join(self._attempt.path, name), str(content))
                self._written[name] = content
                self._end_with(name, str(content))
        return True

    def _is_anothers(self, name: str) -> bool:
        own = {f"events/{node_source(self._index)}.jsonl"}
        if self._index == 0:
            own |= {f"events/{HEAD}.jsonl", "stop.json"}
        return name not in own and (name == "stop.json" or _EVENTS.fullmatch(name) is not None)

    def _end_with(self, name: str, content: str) -> None:
        """End this node's learners if the events of another node report a failure."""
        if name != "stop.json" and _has_failed(content) and find_object(self._attempt.stop).get("what") != "stop":
            write_cell(self._attempt.stop, {"what": "stop", "reason": "failure", "at": time.time(), "by": name})

    def _resend(self, text: str) -> bool:
        wanted = json.loads(text).items()
        self._send_again({str(name): offset for name, offset in wanted if isinstance(offset, int)})
        return True

    def _look(self, text: str) -> bool:
        return self._show(decode_look(text))

    def _signal(self, text: str) -> bool:
        found = _SIGNAL.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:40]!r} is not a number and a signal")
        before = read_text(self._signalled).strip()
        if before.isdigit() and int(found[1]) <= int(before):
            return True
        if not self._send_signal(found[2]):
            return False
        write_text(self._signalled, found[1] + "\n")
        return True


def _has_failed(content: str) -> bool:
    """Return whether a node or one of its learners failed according to its events, so that the other nodes must end."""
    try:
        events = decode_events(content)
    except NewerFormat:
        return False
    for event in events:
        if event.kind is EventKind.FAULT and event.fields.get("code"):
            return True
        if event.kind is EventKind.LEARNER_ENDED and not event.fields.get("restarted"):
            is_service = bool(event.fields.get("service"))
            if not is_service and ended_of_itself(event) and learner_status(event) != 0:
                return True
    return False
