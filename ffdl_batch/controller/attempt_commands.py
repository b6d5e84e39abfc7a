"""Run an attempt, the learners of one node of it, or the transfers that it left."""

from __future__ import annotations

import argparse
import os
import sys
from typing import List, Optional

from ffdl_batch import __version__
from ffdl_batch.attempt.element_files import NoElement, find_task
from ffdl_batch.attempt.file_writer import open_own
from ffdl_batch.attempt.filesystem_retry import patiently
from ffdl_batch.attempt.reader import MAX_EVENT_BYTES, DamagedFile, read_whole
from ffdl_batch.domain.launch.launch_file import LaunchFile, decode
from ffdl_batch.domain.launch.placeholders import LaunchFileError
from ffdl_batch.host import nonblocking_stderr
from ffdl_batch.host.permissions import PRIVATE_UMASK

EXIT_BAD_LAUNCH_FILE = 78
EXIT_NO_TASK = 66
"""The task of a native array has no attempt (sysexits.h EX_NOINPUT)."""
EXIT_UNAVAILABLE = 69
EXIT_PLATFORM = 74
LAUNCH_PATIENCE_S = 120.0
"""Seconds to wait for a file system that does not answer. The launch file, which has this time, cannot be read yet."""


def main(arguments: List[str]) -> int:
    """Run one command. Return the exit code."""
    os.umask(PRIVATE_UMASK)  # sbatch and kubelets start it with another one
    nonblocking_stderr.install()
    parser = argparse.ArgumentParser(prog="ffdl-controller", description="Users do not start it.")
    parser.add_argument("--version", action="version", version=f"ffdl-controller {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("head", "execute an attempt"),
        ("node", "run the learners of one node"),
        ("upload", "store the pending uploads of an attempt that has ended"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--launch", required=name != "head", help="the launch file")
        if name == "node":
            command.add_argument("--rank", type=int, help="the node's rank; else from the scheduler's variable")
        if name == "head":
            words = "exit with 0 even if the attempt failed, so that the scheduler does not start it again"
            command.add_argument("--exit-zero", action="store_true", help=words)
            command.add_argument("--tasks", help="the table of a native array's tasks, instead of --launch")
            command.add_argument("--task", default="", help="the number of the task")
            command.add_argument("--log", help="append the output to this file of the attempt")
        if name == "upload":
            words = "write the final record if a killed head wrote none: if everything is stored, or always"
            command.add_argument("--final-record", choices=("when-stored", "always"), default="", help=words)
    commands.add_parser("probe-isolation", help="check whether this kernel lets users isolate a learner's network")
    options = parser.parse_args(arguments)
    if options.command == "probe-isolation":
        return _probe()
    if not options.launch and not options.tasks:
        parser.error("head needs --launch or --tasks")
    if not options.launch:
        return _run_task(os.path.abspath(options.tasks), options)
    return _run(os.path.abspath(options.launch), options)


def _run(path: str, options: argparse.Namespace) -> int:
    try:
        launch = _read_launch(path)
    except (LaunchFileError, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"ffdl-controller: {path}: {error}\n")
        return EXIT_BAD_LAUNCH_FILE
    try:
        if options.command == "upload":
            return _upload(launch, options.final_record)
        if options.command == "head":
            status = _head(launch, path)
            return 0 if options.exit_zero else status
        return _node(launch, path, options.rank)
    except LaunchFileError as error:
        sys.stderr.write(f"ffdl-controller: {error}\n")
        return EXIT_BAD_LAUNCH_FILE
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {launch.attempt_dir}: {error}\n")
        return EXIT_PLATFORM


def _run_task(tasks: str, options: argparse.Namespace) -> int:
    """Run the head of a task of a native array in the directory of its attempt, which is made if it is not
    complete."""
    try:
        attempt = patiently(lambda: find_task(tasks, options.task), os.sep, LAUNCH_PATIENCE_S, awaits_space=True)
        os.chdir(attempt.path)
        if options.log:
            output = open_own(os.path.join(attempt.path, options.log), os.O_WRONLY | os.O_APPEND)
            for descriptor in (1, 2):
                os.dup2(output, descriptor)
            os.close(output)
    except NoElement as error:
        sys.stderr.write(f"ffdl-controller: {error}\n")
        return EXIT_NO_TASK
    except OSError as error:
        sys.stderr.write(f"ffdl-controller: {tasks}: {error}\n")
        return EXIT_PLATFORM
    return _run(attempt.launch, options)


def _read_launch(path: str) -> LaunchFile:
    real = os.path.realpath(path)  # in a pod the path is a link that the kubelet made

    def read() -> bytes:
        return read_whole(real, MAX_EVENT_BYTES)

    try:
        return decode(patiently(read, os.sep, LAUNCH_PATIENCE_S).decode("utf-8"))
    except DamagedFile as error:
        raise LaunchFileError(str(error)) from None


def _head(launch: LaunchFile, path: str) -> int:
    from ffdl_batch.controller.head.head_controller import run_head

    return run_head(launch, path)


def _node(launch: LaunchFile, path: str, rank: Optional[int]) -> int:
    from ffdl_batch.controller.node.entry import run_node

    if rank is None:
        text = os.environ.get(launch.host.node_rank, "")
        if not text.isdigit():
            raise LaunchFileError(f"{launch.host.node_rank} is {text!r}; set it to the node's rank, or use --rank")
        rank = int(text)
    if not 0 <= rank < launch.nodes:
        raise LaunchFileError(f"node rank {rank} is not one of the {launch.nodes} nodes of this attempt")
    return run_node(launch, path, rank)


def _upload(launch: LaunchFile, write_record: str) -> int:
    from ffdl_batch.controller.head.pending_uploads import upload

    return upload(launch, write_record)


def _probe() -> int:
    from ffdl_batch.controller.loopback_namespace import probe

    reason = probe()
    if reason:
        sys.stderr.write(f"ffdl-controller: {reason}\n")
        return EXIT_UNAVAILABLE
    return 0
