"""``ffdl-controller pod``: the main process of the container beside a learner's container.

kubelet starts it again whenever it ends, and ends it when the learner's container has ended. So however the attempt
ends, this process makes the shim end and then waits for kubelet.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Sequence

from ffdl_batch.attempt.conclusion import EXIT_PLATFORM
from ffdl_batch.attempt.file_writer import read_text, write_text
from ffdl_batch.controller.learner.pod_exchange import PodExchange
from ffdl_batch.controller.pod.directory_setup import Given, lay_out, make_pod
from ffdl_batch.controller.pod.sidecar import (
    MESSAGE_PATH,
    Sidecar,
    error_message,
    leave,
    let_go,
    rest_until_terminated,
)
from ffdl_batch.domain.launch.launch_file import LaunchFile, decode
from ffdl_batch.domain.launch.placeholders import LaunchFileError
from ffdl_batch.domain.launch.pod_protocol import (
    ANNOTATIONS_DIR,
    DONE,
    INDEX,
    MODEL_DIR,
    PLAN_DIR,
    POD_DIR,
    PRIVATE_DIR,
    RUNS,
)
from ffdl_batch.host.signals import hold_signals

EXIT_BAD_LAUNCH_FILE = 78


def main(arguments: Sequence[str]) -> int:
    """Run until kubelet ends this process. Return the exit status of the pod's head or node controller."""
    hold_signals(only_family=True)
    parser = argparse.ArgumentParser(prog="ffdl-controller pod")
    parser.add_argument("--launch", default=f"{PLAN_DIR}/launch.json", help="the launch file, beside the shim")
    parser.add_argument("--model", default=MODEL_DIR, help="directory with the parts of the model archive")
    parser.add_argument("--private", default=PRIVATE_DIR, help="directory with environment.json and secrets.json")
    parser.add_argument("--annotations", default=ANNOTATIONS_DIR, help="directory with the pod's annotations")
    parser.add_argument("--message", default=MESSAGE_PATH, help="file for the container's termination message")
    options = parser.parse_args(arguments)
    given = Given(os.path.dirname(os.path.abspath(options.launch)), options.model, options.private, options.annotations)
    pod, status = POD_DIR, EXIT_BAD_LAUNCH_FILE
    try:
        launch = _read(options.launch)
        assert launch.pod is not None
        pod, status = launch.pod.directory, EXIT_PLATFORM
        index = _index(launch)
        seat = make_pod(pod, given.plan)
        is_done = os.path.exists(seat.file(DONE))
        if not is_done:
            lay_out(launch, given, index)
        run = _count_run(pod)
    except (LaunchFileError, OSError, UnicodeDecodeError) as error:
        return _refuse(pod, given, status, f"{options.launch}: {error}", options.message)
    return Sidecar(launch, index, given, seat, run, options.message).run(is_done=is_done)


def _read(path: str) -> LaunchFile:
    with open(path, encoding="utf-8") as file:
        launch = decode(file.read())
    if launch.pod is None:
        raise LaunchFileError("this launch file is not for a pod")
    return launch


def _index(launch: LaunchFile) -> int:
    text = os.environ.get(INDEX, "0")
    if not text.isdigit() or int(text) >= launch.nodes:
        raise LaunchFileError(f"{INDEX} is {text!r}, but this attempt has {launch.nodes} pods")
    return int(text)


def _count_run(pod: str) -> int:
    path = os.path.join(pod, RUNS)
    text = read_text(path).strip()
    run = int(text) + 1 if text.isdigit() else 1
    write_text(path, f"{run}\n")
    return run


def _refuse(pod: str, given: Given, status: int, message: str, last: str) -> int:
    """Let the pod fail with this message, because the attempt cannot begin.

    If this program ended at once, kubelet would start it again.
    """
    sys.stderr.write(f"ffdl-controller: {message}\n")
    leave(last, error_message(status, message))
    try:
        let_go(make_pod(pod, given.plan), status)
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {error}\n")
        return status
    rest_until_terminated(PodExchange(pod))
    return status
