"""What the platform wishes of a pod: files that kubelet keeps as the pod's annotations are."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import Callable, Dict, Mapping

from ffdl_batch.attempt.file_writer import read_text, write_cell, write_text
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.attempt.learner_endings import ended_of_itself, learner_status
from ffdl_batch.attempt.reader import find_object, find_text
from ffdl_batch.domain.file_format import NewerFormat
from ffdl_batch.domain.launch.launch_file import LaunchFile
from ffdl_batch.domain.launch.pod_protocol import Look, Wish, decode_look, unpack
from ffdl_batch.domain.outcome.controller_events import HEAD, EventKind, decode_events, node_source

SIGNALLED = "signalled"
"""In the pod's directory: the number of the signal that was passed on last."""
_EVENTS = re.compile(r"events/(head|node-\d+)\.jsonl", re.ASCII)
_SIGNAL = re.compile(r"(\d{1,15}) ([A-Z0-9]{1,12})", re.ASCII)


class Wishes:
    """Looked at again and again. `send_again`, `send_signal` and `show` are told what is wished of them; the last two
    say whether they could."""

    def __init__(
        self,
        launch: LaunchFile,
        index: int,
        directory: str,
        send_again: Callable[[Mapping[str, int]], None],
        send_signal: Callable[[str], bool],
        show: Callable[[Look], bool],
    ) -> None:
        self._launch, self._index, self._directory = launch, index, directory
        self._attempt = AttemptDir(launch.attempt_dir)
        self._send_again, self._send_signal, self._show = send_again, send_signal, show
        self._signalled = os.path.join(launch.pod.directory if launch.pod else launch.job_dir, SIGNALLED)
        self._seen: Dict[Wish, str] = {}
        self._written: Dict[str, str] = {}
        self._complained = ""

    def look(self) -> None:
        """Obey what is new."""
        steps = {
            Wish.CONTROL: self._control,
            Wish.SIBLINGS: self._siblings,
            Wish.RESEND: self._resend,
            Wish.SIGNAL: self._signal,
            Wish.LOOK: self._look,
        }
        for wish, obey in steps.items():
            try:
                text = read_text(os.path.join(self._directory, wish.value)).strip()
                if text and self._seen.get(wish) != text and obey(text):
                    self._seen[wish] = text
            except (OSError, ValueError, TypeError, AttributeError) as error:
                if str(error) != self._complained:
                    self._complained = str(error)
                    sys.stderr.write(f"ffdl-controller: the wish {wish.value} is not obeyed: {error}\n")

    def _control(self, text: str) -> bool:
        if isinstance(json.loads(text), dict) and text != find_text(self._attempt.control).strip():
            write_text(self._attempt.control, text + "\n")
        return True

    def _siblings(self, text: str) -> bool:
        """Where pods share a tree their files say it."""
        if not self._launch.apart:
            return True
        for name, said in json.loads(unpack(text)).items():
            if self._is_anothers(name) and self._written.get(name) != said:
                write_text(os.path.join(self._attempt.path, name), str(said))
                self._written[name] = said
                self._heed(name, str(said))
        return True

    def _is_anothers(self, name: str) -> bool:
        own = {f"events/{node_source(self._index)}.jsonl"}
        if self._index == 0:
            own |= {f"events/{HEAD}.jsonl", "stop.json"}
        return name not in own and (name == "stop.json" or _EVENTS.fullmatch(name) is not None)

    def _heed(self, name: str, said: str) -> None:
        """What ends the learners of one node ends those of all."""
        if name != "stop.json" and _has_failed(said) and find_object(self._attempt.stop).get("what") != "stop":
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
            raise ValueError(f"{text[:40]!r} is no number and signal")
        before = read_text(self._signalled).strip()
        if before.isdigit() and int(found[1]) <= int(before):
            return True
        if not self._send_signal(found[2]):
            return False
        write_text(self._signalled, found[1] + "\n")
        return True


def _has_failed(said: str) -> bool:
    """Whether a node's learner or the node itself failed, by its events, so that nobody else should go on."""
    try:
        events = decode_events(said)
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
