"""Controllers whose data come from a real S3 server and whose results go there, also when something ends on the way."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.data.staging_protocol import Transfer
from ffdl_batch.domain.data.store_kinds import StoreAddress, StoreKind
from ffdl_batch.domain.launch.launch_file import LaunchFile, Stores
from ffdl_batch.domain.metrics.records import Collecting, ExtractionGroup, Measure, decode_record
from ffdl_batch.domain.outcome.controller_events import EventKind, Outcome
from ffdl_batch.host.processes import all_processes
from tests.contract.controller_rig import LIMITS, Rig, job_id, rig, two_nodes
from tests.fakes.fault_proxy import FaultProxy, Rule
from tests.fakes.s3_server import S3Server
from tests.staging_rig import KEY, MIB, SECRET

READ = 'cat "$DATA_DIR"/deep/a; echo result > "$RESULT_DIR/model.bin"; echo saved > "$CHECKPOINT_DIR/ckpt"'
QUICK = replace(LIMITS, upload_s=0.2)
LOSS = ExtractionGroup("train", "loss %{FLOAT:loss}", scalars={"loss": Measure("FLOAT", "$loss")}, etimes={})
COLLECTED = {
    "collectors": (sys.executable, "-m", "ffdl_batch.collectors"),
    "metrics": Collecting("regex_extractor", (LOSS,), 0),
}


def log_key() -> str:
    """Name the log of the first learner in the store."""
    return f"{job_id()}/learner-1/training-log.txt"


class Site:
    """A rig, a bucket for data and one for results, and a proxy in front of them."""

    def __init__(self, run: Rig, server: S3Server) -> None:
        self.run, self.server, self.proxy = run, server, FaultProxy(server.port)
        name = f"{abs(hash(str(run.base))):x}"
        self.data, self.results = f"in-{name}", f"out-{name}"
        for bucket in (self.data, self.results):
            server.client.create_bucket(Bucket=bucket)
        Path(run.attempt.secrets).write_text(json.dumps({"the-key": KEY, "the-secret": SECRET}))

    def store(self, bucket: str) -> StoreAddress:
        keys = {"user_name": "the-key", "password": "the-secret"}
        options = {"timeout_s": "60"}
        return StoreAddress(StoreKind.S3, self.proxy.endpoint, "", bucket, options, keys)

    def put(self, key: str, data: bytes) -> None:
        self.server.client.put_object(Bucket=self.data, Key=key, Body=data)

    def stored(self) -> dict[str, bytes]:
        """What the bucket of results has, by key."""
        client = self.server.client
        keys = [one["Key"] for one in client.list_objects_v2(Bucket=self.results).get("Contents", [])]
        return {key: client.get_object(Bucket=self.results, Key=key)["Body"].read() for key in keys}

    def write(self, command: str, **changes: object) -> LaunchFile:
        run = self.run
        out = self.store(self.results)
        learner = "{learner_id}"
        uploads = (
            Transfer(out, job_id(), run.attempt.results),
            Transfer(out, f"{job_id()}/_submitted_code", run.attempt.staging("_submitted_code")),
            Transfer(out, f"_wml_checkpoints/{job_id()}", run.job.checkpoints),
            Transfer(out, f"{job_id()}/learner-{learner}", f"{run.attempt.logs}/learner-{learner}"),
        )
        given: dict[str, object] = {
            "fetches": (Transfer(self.store(self.data), "set", run.attempt.data),),
            "uploads": uploads,
            "staging": (sys.executable, "-m", "ffdl_batch.staging"),
            "stores": Stores(),
            "limits": QUICK,
        }
        Path(run.job.checkpoints).mkdir(parents=True, exist_ok=True)
        return run.write(command, **{**given, **changes})  # type: ignore[arg-type]

    def measured(self) -> list[str]:
        """The losses that the bucket of results has."""
        lines = self.stored().get(f"{job_id()}/learner-1/evaluation-metrics.txt", b"").decode().splitlines()
        return [decode_record(line).values["loss"].value for line in lines]

    def events(self, kind: EventKind) -> list[dict[str, object]]:
        return [dict(event.fields) for event in self.run.events() if event.kind is kind]

    def staging_pids(self) -> list[int]:
        found = []
        for pid in all_processes():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"ffdl_batch.staging" in words and any(str(self.run.base).encode() in word for word in words):
                found.append(pid)
        return found

    def last_byte(self) -> bytes:
        """Of the large file, while it comes."""
        return b"".join(path.read_bytes()[-1:] for path in Path(self.run.attempt.data).rglob("*.part"))

    def journal_bytes(self) -> int:
        """What the program that brings data has noted so far grows with each note."""
        return Path(self.run.job.staging, "journal.sqlite-wal").stat().st_size

    def ranges(self) -> list[str]:
        """What was asked for of the large file."""
        return [found for method, path, found in self.proxy.requests if method == "GET" and "deep/a" in path]

    def await_staging(self, path: str = "") -> int:
        """The pid of the program once the store was asked for the path."""
        self.run.wait(lambda: any(path in asked for _, asked, _ in self.proxy.requests), f"a request for {path}")
        self.run.wait(lambda: bool(self.staging_pids()), "the staging program")
        return self.staging_pids()[0]


@pytest.fixture(name="site")
def made(tmp_path: Path, s3_server: S3Server) -> Iterator[Site]:
    with rig(tmp_path) as run:
        run.have_controllers_do()
        site = Site(run, s3_server)
        yield site
        site.proxy.stop()


def test_bucket_data_is_loaded_and_results_are_stored_in_ffdl_layout_when_stores_are_busy_first(site: Site) -> None:
    site.put("set/deep/a", b"the data\n")
    site.proxy.rules.append(Rule("GET", site.results, status=503, code="SlowDown", times=2))
    site.proxy.rules.append(Rule("GET", "set/deep/a", status=500, code="InternalError", times=1))
    site.write(f'{READ}; cd "$RESULT_DIR"; ln -s "$RESULT_DIR/model.bin" latest; ln -s /etc out; chmod 750 model.bin')
    assert site.run.run() == 0, site.run.errors
    assert (site.run.final().outcome, site.run.final().stored) == (Outcome.COMPLETED, True)
    stored = site.stored()
    assert set(stored) == {
        f"{job_id()}/.ffdl-index.json",
        f"{job_id()}/model.bin",
        f"{job_id()}/_submitted_code/model.zip",
        f"_wml_checkpoints/{job_id()}/ckpt",
        log_key(),
    }
    assert stored[f"{job_id()}/model.bin"] == b"result\n"
    assert stored[log_key()].decode() == site.run.log()
    told, _, rest = site.run.log().partition("the data\n")
    assert "ffdl: loading data: set/deep/a: it answered 500 InternalError" in told and "; tried again" in told
    assert "ffdl: loading data: 1 file, 9 B in " in told
    assert rest == "ffdl: storing: out is left out: it is a link that leads out of the directory, to /etc\n"
    index = json.loads(stored[f"{job_id()}/.ffdl-index.json"])["entries"]
    assert index == [{"name": "latest", "target": "model.bin"}, {"name": "model.bin", "mode": "750"}]
    for path in site.run.base.rglob("*"):
        if path.is_file() and str(path) != site.run.attempt.secrets:
            assert SECRET.encode() not in path.read_bytes(), path


def test_results_log_and_metrics_are_uploaded_while_learner_runs_and_after_it_fails(site: Site) -> None:
    site.put("set/deep/a", b"x\n")
    wait = 'while [ ! -e "$RESULT_DIR/go" ]; do sleep 0.05; done'
    site.write(f"{READ}; echo loss 0.5; {wait}; echo loss 0.25; exit 3", **COLLECTED)
    site.run.start()
    site.run.wait(lambda: site.measured() == ["0.5"], "records in the store")
    site.run.wait(lambda: b"loss 0.5" in site.stored().get(log_key(), b""), "the log in the store")
    site.run.wait(lambda: f"{job_id()}/model.bin" in site.stored(), "the result in the store")
    assert not Path(site.run.attempt.learner_logs(1), "evaluation-metrics.txt").exists()
    Path(site.run.attempt.results, "go").touch()
    assert site.run.await_end() == 3, site.run.errors
    assert (site.run.final().error_code, site.run.final().stored) == ("C201", True)
    assert site.measured() == ["0.5", "0.25"]
    assert site.stored()[log_key()].endswith(b"loss 0.5\nloss 0.25\n")
    assert {f"{job_id()}/model.bin", f"{job_id()}/go"} <= set(site.stored())


def test_halt_uploads_log_and_metrics_of_learner(site: Site) -> None:
    site.put("set/deep/a", b"x\n")
    command = f"{READ}; trap 'echo loss 0.25; exit 0' USR2; echo loss 0.5; while true; do sleep 0.05; done"
    site.write(command, **{**COLLECTED, "limits": replace(QUICK, upload_s=600.0)})
    site.run.start_until("loss 0.5")
    site.run.say("halt")
    os.kill(site.run.node_pid(), signal.SIGURG)
    site.run.await_end()
    assert (site.run.final().outcome, site.run.final().stored) == (Outcome.HALTED, True)
    assert site.measured() == ["0.5", "0.25"]
    assert site.stored()[log_key()].endswith(b"loss 0.5\nloss 0.25\n")


def test_attempt_fails_with_c103_before_loading_when_results_store_rejects_credentials(site: Site) -> None:
    site.put("set/deep/a", b"x")
    site.proxy.rules.append(Rule("GET", site.results, status=403, code="InvalidAccessKeyId", times=2))
    site.write(READ)
    site.run.run()
    final = site.run.final()
    assert (final.error_code, site.run.log()) == ("C103", "")
    assert "the store of results cannot be used: " in final.message and "InvalidAccessKeyId" in final.message
    assert not Path(site.run.attempt.model, "main.py").exists()


def test_attempt_fails_with_c103_when_data_is_missing(site: Site) -> None:
    launch = site.write(READ)
    site.write(READ, fetches=(replace(launch.fetches[0], prefix="nothing-there"),), uploads=())
    site.run.run()
    assert site.run.final().error_code == "C103", site.run.final()
    assert [one["class"] for one in site.events(EventKind.FAULT)] == ["missing"]
    assert site.data in site.run.final().message
    assert not site.events(EventKind.LEARNER_STARTED)


def hold(site: Site) -> None:
    """A large file whose parts come very slowly."""
    site.put("set/deep/a", b"y" * (10 * MIB))
    site.proxy.rules.append(Rule("GET", "deep/a", pause_s=5.0))


def test_cancel_request_stops_download_before_learner_start(site: Site) -> None:
    hold(site)
    site.write(READ, uploads=())
    site.run.start()
    pid = site.await_staging("deep/a")
    site.run.say("cancel")
    site.run.await_end()
    assert not Path(f"/proc/{pid}").exists()
    assert not site.staging_pids()
    assert not site.events(EventKind.LEARNER_STARTED)
    assert site.run.final().outcome is Outcome.CANCELLED


def kill_controllers(site: Site, pid: int) -> None:
    for one in [site.run.node_pid(), *site.run.processes()]:
        try:
            if one != pid:
                os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue
    site.run.wait(lambda: not {*site.run.processes()} - {pid}, "the end of the controllers, which hold the attempt")


def test_restarted_attempt_resumes_partial_download_after_controller_kill(site: Site) -> None:
    """The program of the killed run is ended first."""
    hold(site)
    pause_s, site.proxy.rules[-1].pause_s = site.proxy.rules[-1].pause_s, 0.0
    shorter_may, longer_may = threading.Event(), threading.Event()

    def give(path: str, data: bytes) -> bytes:
        if path.endswith("deep/a"):
            (longer_may if len(data) == 8 * MIB else shorter_may).wait()
        return data

    site.proxy.edit = give
    site.write('wc -c < "$DATA_DIR/deep/a"', uploads=())
    site.run.start()
    pid = site.await_staging("deep/a")
    site.run.wait(lambda: len(site.ranges()) == 2, "both parts to be asked for")
    known = site.journal_bytes()
    shorter_may.set()
    site.run.wait(lambda: site.last_byte() == b"y", "the end of the file, which is the shorter part")
    site.run.wait(lambda: site.journal_bytes() > known, "the journal to know the shorter part")
    site.proxy.rules[-1].pause_s = pause_s
    longer_may.set()
    site.run.wait(lambda: site.proxy.given[f"/{site.data}/set/deep/a"] > 2 * MIB, "the beginning of the other part")
    kill_controllers(site, pid)
    site.proxy.rules.clear()
    before = site.ranges()
    assert len(before) == 2, "a part of 8 MiB and one of 2, at the same time"
    assert site.run.run() == 0, site.run.errors
    assert site.ranges()[2:] == [f"bytes=0-{8 * MIB - 1}"]
    assert str(10 * MIB) in site.run.log()
    assert not site.staging_pids()


def test_attempt_fails_with_s302_when_staging_program_is_killed(site: Site) -> None:
    hold(site)
    site.write(READ, uploads=())
    site.run.start()
    os.kill(site.await_staging("deep/a"), signal.SIGKILL)
    site.run.await_end()
    assert site.run.final().error_code == "S302"
    assert "killed by signal 9" in site.run.final().message


def test_upload_completes_when_sigterm_reaches_staging_program(site: Site) -> None:
    """Slurm's TERM reaches the program, too."""
    site.put("set/deep/a", b"x")
    site.write('head -c 8M /dev/zero > "$RESULT_DIR/big"', limits=replace(LIMITS, kill_wait_s=300, upload_s=600.0))
    may_go_on = threading.Event()

    def hold_up(method: str, path: str) -> None:
        if method == "PUT" and "big" in path:
            may_go_on.wait()

    site.proxy.before = hold_up
    site.run.start()
    site.run.wait(lambda: any(m == "PUT" and "big" in p for m, p, _ in site.proxy.requests), "the upload")
    for pid in (*site.staging_pids(), site.run.node_pid()):
        os.kill(pid, signal.SIGTERM)
    may_go_on.set()
    site.run.await_end()
    assert len(site.stored()[f"{job_id()}/big"]) == 8_000_000 + 8 * (MIB - 1_000_000), site.run.errors
    assert any(site.events(EventKind.STORED))


def test_rejected_upload_stays_pending_until_store_accepts_it(site: Site) -> None:
    site.put("set/deep/a", b"x")
    wait = f"touch {site.run.base}/over; until [ -e {site.run.base}/go ]; do sleep 0.05; done"
    site.write(f"{READ}; {wait}", limits=replace(LIMITS, upload_s=600.0))
    site.run.start()
    site.run.wait((site.run.base / "over").exists, "the learner's end")
    away = Rule("", site.results, status=403, code="ExpiredToken")
    site.proxy.rules.append(away)
    (site.run.base / "go").touch()
    site.run.await_end()
    final = site.run.final()
    assert (final.outcome, final.stored, final.error_code) == (Outcome.FAILED, False, "S303")
    assert site.run.run("upload") == 74
    assert not Path(site.run.attempt.uploaded).exists()
    site.proxy.rules.remove(away)
    assert site.run.run("upload") == 0, site.run.errors
    assert Path(site.run.attempt.uploaded).exists()
    assert site.stored()[f"{job_id()}/model.bin"] == b"result\n"
    assert site.stored()[log_key()].decode() == site.run.log()


def test_attempt_fails_with_s306_when_staging_interpreter_is_missing(site: Site) -> None:
    site.write(READ, staging=("/not/there",))
    site.run.run()
    assert site.run.final().error_code == "S306"
    assert "cannot start '/not/there'" in site.run.final().message


def test_shared_results_are_uploaded_only_by_first_or_last_node(site: Site) -> None:
    """Else each of many nodes would read all of it, to find that it is there."""
    site.put("set/deep/a", b"x")
    limits = replace(LIMITS, upload_s=600.0)
    plain = site.write("true", limits=limits)
    run = site.run
    wait = 'until [ -e "$RESULT_DIR/go" ]; do sleep 0.05; done'
    # The second node may leave it to others where these are known to be at work.
    others = f"until grep -q learner_started '{run.attempt.event_file('node-0')}'; do sleep 0.05; done"
    either = f"if [ $LEARNER_ID = 2 ]; then {others}; else {wait}; fi"
    command = f'echo $LEARNER_ID > "$RESULT_DIR/of-$LEARNER_ID"; {either}; echo over'
    two_nodes(run, command, limits=limits, stores=Stores(), fetches=plain.fetches, uploads=plain.uploads,
              staging=plain.staging)  # fmt: skip
    run.start()
    run.wait(lambda: any(e.kind is EventKind.STORED for e in run.events("node-1")), "the second node's end")
    assert set(site.stored()) == {f"{job_id()}/learner-2/training-log.txt"}
    Path(run.attempt.results, "go").touch()
    assert run.await_end() == 0, run.errors
    assert {f"{job_id()}/of-1", f"{job_id()}/of-2", log_key()} <= set(site.stored())


def test_last_node_uploads_results_written_after_first_node_ended(site: Site) -> None:
    site.put("set/deep/a", b"x")
    plain = site.write("true", limits=LIMITS)
    wait = 'until [ -e "$RESULT_DIR/go" ]; do sleep 0.05; done; echo late > "$RESULT_DIR/late"'
    run = site.run
    two_nodes(run, f"[ $LEARNER_ID = 1 ] || {{ {wait}; }}", limits=LIMITS, stores=Stores(), fetches=plain.fetches,
              uploads=plain.uploads, staging=plain.staging)  # fmt: skip
    run.start()
    run.wait(lambda: any(e.kind is EventKind.STORED for e in run.events("node-0")), "the first node's end")
    Path(run.attempt.results, "go").touch()
    assert run.await_end() == 0, run.errors
    assert site.stored()[f"{job_id()}/late"] == b"late\n"
