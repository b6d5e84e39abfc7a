"""Parts of a pod's controller: requests, the log by position, the final record, the seat."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from ffdl_batch.attempt.file_writer import write_cell
from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.controller.learner.pod_exchange import PodExchange
from ffdl_batch.controller.pod.daemon_requests import DaemonRequests
from ffdl_batch.controller.pod.learner_proxy import OF_KUBELET, go_text
from ffdl_batch.controller.pod.relay import MISSES, LogReader
from ffdl_batch.controller.pod.sidecar import MESSAGE_BYTES, termination_message
from ffdl_batch.domain.launch.launch_file import Pod
from ffdl_batch.domain.launch.pod_protocol import PLAIN_ANNOTATION_BYTES, Look, encode_look, pack
from ffdl_batch.domain.outcome.controller_events import Event, EventKind, encode_event
from ffdl_batch.host.processes import all_processes
from tests.unit.controller.rig import launch_file


class Place:
    """A pod's directories, and the results of its requests."""

    def __init__(self, base: Path, index: int = 0, *, apart: bool = True) -> None:
        self.attempt = AttemptDir(str(base / "attempt-1"))
        for directory in (
            Path(self.attempt.events),
            Path(self.attempt.learner_logs(1)),
            base / "annotations",
            base / "pod",
        ):
            directory.mkdir(parents=True, exist_ok=True)
        self.annotations = base / "annotations"
        pod = Pod(str(base / "pod"), apart=apart)
        launch = launch_file(self.attempt.path, job_dir=str(base), learners=2, nodes=2, pod=pod)
        self.again: list[dict[str, int]] = []
        self.signals: list[str] = []
        self.takes = True
        self.looks: list[Look] = []
        self.requests = DaemonRequests(launch, index, str(self.annotations), self.resend, self.signal, self.show)

    def resend(self, positions: Mapping[str, int]) -> None:
        self.again.append(dict(positions))

    def signal(self, name: str) -> bool:
        if self.takes:
            self.signals.append(name)
        return self.takes

    def show(self, look: Look) -> bool:
        self.looks.append(look)
        return self.takes

    def annotate(self, name: str, text: str) -> None:
        (self.annotations / name).write_text(text)
        self.requests.look()

    def stop(self) -> dict[str, object]:
        path = Path(self.attempt.stop)
        return json.loads(path.read_text()) if path.exists() else {}


def failure(**fields: object) -> str:
    ended = {"learner_id": 2, "exit_code": 1, "ended_by": "", "asked": "", **fields}
    return encode_event(Event(1, 1.0, "node-1", EventKind.LEARNER_ENDED, ended))  # type: ignore[arg-type]


def siblings(text: str, name: str = "events/node-1.jsonl") -> str:
    return json.dumps({name: text})


def test_pod_signal_request_is_sent_only_once_across_runs(tmp_path: Path) -> None:
    Place(tmp_path).annotate("signal", "3 URG")
    again = Place(tmp_path)
    again.annotate("signal", "3 URG")
    again.annotate("signal", "2 HUP")
    again.annotate("signal", "4 HUP")
    assert again.signals == ["HUP"]


def test_pod_signal_request_waits_until_controller_can_send_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.takes = False
    place.annotate("signal", "1 URG")
    place.takes = True
    place.requests.look()
    place.requests.look()
    assert place.signals == ["URG"]


@pytest.mark.parametrize("text", ["x", "1", "URG 1", "1 ../x", "-1 URG"])
def test_pod_signal_request_warns_once_if_invalid(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path)
    place.annotate("signal", text)
    place.requests.look()
    assert place.signals == []
    assert capsys.readouterr().err.count("cannot be carried out") == 1, "told once"


def test_pod_requests_ignore_damaged_files(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for name in ("control", "siblings", "resend"):
        place.annotate(name, "{")
    place.annotate("siblings", "zlib:eJw=")
    assert not Path(place.attempt.control).exists()
    assert place.again == []


OTHER = ("events/node-0.jsonl", "events/head.jsonl", "stop.json", "../../x", "final.json", "events/../x.jsonl")


@pytest.mark.parametrize(("name", "apart"), [*((name, True) for name in OTHER), ("events/node-1.jsonl", False)])
def test_pod_siblings_write_only_event_files_of_other_nodes_and_none_in_shared_directory(
    tmp_path: Path, name: str, apart: bool
) -> None:
    place = Place(tmp_path, apart=apart)
    place.annotate("siblings", siblings(failure(), name))
    assert not Path(place.attempt.path, name).exists()


def test_pod_siblings_stop_learner_after_failure_on_another_node(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.annotate("siblings", siblings(failure()))
    assert (place.stop()["what"], place.stop()["reason"]) == ("stop", "failure")
    assert Path(place.attempt.event_file("node-1")).read_text() == failure()


def test_pod_siblings_unpack_compressed_events(tmp_path: Path) -> None:
    place, long = Place(tmp_path), failure() + "\n" * PLAIN_ANNOTATION_BYTES
    text = pack(siblings(long))
    assert len(text) < PLAIN_ANNOTATION_BYTES
    place.annotate("siblings", text)
    assert Path(place.attempt.event_file("node-1")).read_text() == long


@pytest.mark.parametrize(
    "fields", [{"exit_code": 0}, {"restarted": True}, {"service": True}, {"asked": "halt"}, {"ended_by": "stop"}]
)
def test_pod_siblings_do_not_stop_learner_after_harmless_end(tmp_path: Path, fields: dict[str, object]) -> None:
    place = Place(tmp_path)
    place.annotate("siblings", siblings(failure(**fields)))
    assert place.stop() == {}


def test_printed_log_reads_rotated_files_and_skips_lost_output(tmp_path: Path) -> None:
    attempt = Place(tmp_path).attempt
    directory, entries = Path(attempt.learner_logs(1)), []
    for name, base, data in (("training-log.txt.1", 100, b"b" * 10), ("training-log.txt", 110, b"c" * 5)):
        (directory / name).write_bytes(data)
        entries.append({"inode": (directory / name).stat().st_ino, "base": base, "lines": 0})
    write_cell(attempt.log_files(1), {"files": entries})
    printed = LogReader(attempt, 1)
    assert printed.read(0, 100) == (100, b"b" * 10), "what was there is gone"
    assert printed.read(104, 3) == (104, b"bbb")
    assert printed.read(104, 100) == (104, b"b" * 6), "no further than the file's end"
    assert printed.read(110, 100) == (110, b"c" * 5)
    assert printed.read(115, 100) == (115, b"")
    (directory / "training-log.txt.1").unlink()
    found = [printed.read(100, 100) for _ in range(MISSES)]
    assert found == [(100, b"")] * (MISSES - 1) + [(110, b"c" * 5)], "it may be being renamed; then it is gone"


def test_printed_log_does_not_follow_link(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (tmp_path / "secret").write_text("secret")
    Path(place.attempt.training_log(1)).symlink_to(tmp_path / "secret")
    assert LogReader(place.attempt, 1).read(0, 100) == (0, b"")


def test_pod_termination_message_fits_size_limit(tmp_path: Path) -> None:
    attempt = Place(tmp_path).attempt
    write_cell(attempt.final, {"outcome": "failed", "message": "é" * 9000, "log_tail": ["x" * 9000], "stored": True})
    word = termination_message(attempt, 0)
    assert len(word.encode()) <= MESSAGE_BYTES
    assert json.loads(word)["outcome"] == "failed"


def test_pod_termination_message_of_other_nodes_holds_last_events(tmp_path: Path) -> None:
    attempt = Place(tmp_path).attempt
    lines = [encode_event(Event(n, 1.0, "node-1", EventKind.FAULT, {"message": "m" * 100})) for n in range(1, 100)]
    Path(attempt.event_file("node-1")).write_text("".join(lines))
    word = termination_message(attempt, 1)
    assert len(word) <= MESSAGE_BYTES
    assert word.endswith(lines[-1]) and word.splitlines()[0] + "\n" in lines


def exchange_of(base: Path) -> PodExchange:
    seat = PodExchange(str(base))
    Path(seat.path).mkdir()
    return seat


@pytest.mark.parametrize("text", ["", "12", "x\n", "0\n", "1\n", "-5\n", "4194305000\n"])
def test_seat_without_valid_shim_pid_has_no_processes(tmp_path: Path, text: str) -> None:
    """Whatever stands in the file: nobody's processes are taken for a learner's."""
    seat = exchange_of(tmp_path)
    Path(seat.file("begun")).write_text(text)
    assert seat.shim == 0
    assert seat.members(all_processes()) == []
    assert seat.process_group() == 0


def test_seat_shim_without_own_group_has_no_process_group(tmp_path: Path) -> None:
    seat = exchange_of(tmp_path)
    child = os.fork()
    if not child:
        os.read(os.pipe()[0], 1)
    try:
        Path(seat.file("begun")).write_text(f"{child}\n")
        assert seat.shim == child
        assert seat.process_group() == 0
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert seat.shim == 0


@pytest.mark.parametrize("line", ["", "id", "id x\n", "id 3"])
def test_seat_end_is_unknown_if_exit_line_is_incomplete(tmp_path: Path, line: str) -> None:
    seat = exchange_of(tmp_path)
    Path(seat.file("ended")).write_text(line)
    assert seat.ended() is None


def test_pod_view_request_is_repeated_until_it_is_accepted(tmp_path: Path) -> None:
    place, look = Place(tmp_path), Look("a", "top", (1,))
    place.takes = False
    place.annotate("look", encode_look(look))
    place.takes = True
    place.requests.look()
    place.requests.look()
    assert place.looks == [look, look]
    place.annotate("look", "no look")
    assert place.looks == [look, look]


def test_learner_of_pod_has_variables_of_user_and_none_of_kubelet(tmp_path: Path) -> None:
    text = go_text("s", "KUBERNETES_PORT='own'\nMONGO_URL='own'\n", str(tmp_path), ["/usr/bin/env"], "taken", 0o027)
    env = {"ffdl_seat": str(tmp_path), **dict.fromkeys(OF_KUBELET, "kubelet's")}
    done = subprocess.run(["/bin/sh", "-c", text], env=env, check=True, stdout=subprocess.PIPE, text=True)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert {name: value for name, value in found.items() if name not in ("PWD", "OLDPWD", "_", "SHLVL")} == {
        "KUBERNETES_PORT": "own", "MONGO_URL": "own",
    }  # fmt: skip


def test_learner_of_pod_has_umask_of_submitter(tmp_path: Path) -> None:
    text = go_text("s", "", str(tmp_path), ["/bin/sh", "-c", "umask"], "taken", 0o027)
    done = subprocess.run(["/bin/sh", "-c", text], env={"ffdl_seat": str(tmp_path)}, check=True, capture_output=True)
    assert done.stdout == b"0027\n"
