"""What a learner finds, compared with FfDL's contract, in the mounted and in the copied form, alone and in company."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import field
from ipaddress import ip_address
from typing import Any

import pytest

from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.rendezvous import first_port
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.rootfs import GROUP, USERS

DATA, RESULTS = "the-data", "the-results"
COMMAND = './report.sh first \'two  words\' "$LEARNER_ID"; cd / &&\npython3 "$MODEL_DIR/report.py" | cat; exit 0'
"""Shell syntax, a line break, quotes, and a file run directly that is stored without execute bits."""

SAME = {
    "MODEL_DIR": "/job/model-code",
    "LOG_DIR": "/job/logs",
    "JOB_STATE_DIR": "/job",
    "TRAINING_ID": "{id}",
    "TRAINING_COMMAND": COMMAND,
    "GPU_COUNT": "2.000000",
    "NUM_LEARNERS": "{learners}",
    "LEARNER_ID": "{learner}",
    "LEARNER_NAME_PREFIX": "learner-{id}",
    "DOWNWARD_API_POD_NAME": "learner-{id}-{rank}",
    "DOWNWARD_API_POD_NAMESPACE": "default",
    "RANK": "{rank}",
    "WORLD_SIZE": "{learners}",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "NNODES": "{learners}",
    "NODE_RANK": "{rank}",
    "PYTHONUNBUFFERED": "1",
}
"""FfDL's variables (its learner/envvars.go; its pods' names count from 0), and the rendezvous of the frameworks."""
MOUNTED = SAME | {
    "DATA_DIR": f"/mnt/data/{DATA}",
    "RESULT_DIR": f"/mnt/results/{RESULTS}/{{id}}",
    "RESULT_BUCKET_DIR": f"/mnt/results/{RESULTS}",
    "CHECKPOINT_DIR": f"/mnt/results/{RESULTS}/_wml_checkpoints",
}
COPIED = SAME | {
    "DATA_DIR": f"/job/{DATA}",
    "RESULT_DIR": f"/job/{RESULTS}",
    "RESULT_BUCKET_DIR": "",
    "CHECKPOINT_DIR": "/job/checkpoints",  # FfDL has none here; docs/reference/contract.md says so
}
OWN = ("ALERTMANAGER_X", "DLAAS_X", "ETCD_X", "GRAFANA_X", "HOSTNAME", "KUBERNETES_PORT", "MONGO_X", "PUSHGATEWAY_X")
"""Names of variables that FfDL unsets in learners."""
CANARY = "ffdl-canary"
REPORT_PY = """\
import errno, glob, json, os, socket, stat, sys, time
job, me = os.environ["TRAINING_ID"], os.environ["LEARNER_ID"]

def listing(path):
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        return errno.errorcode[error.errno]

def opened(path):
    try:
        os.close(os.open(path, os.O_RDWR))
        return "opened"
    except OSError as error:
        return errno.errorcode[error.errno]

def space(path):
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize

with open("/tmp/room", "wb") as file:
    os.posix_fallocate(file.fileno(), 0, 80 << 20)
os.unlink("/tmp/room")
result = os.environ["RESULT_DIR"]
for name in ("DATA_DIR", "MODEL_DIR", "JOB_STATE_DIR", "LOG_DIR", "RESULT_DIR", "CHECKPOINT_DIR"):
    assert os.path.isdir(os.environ[name]), name
# Two jobs at once on one node: each waits until the other runs, so that both hold their GPUs.
meeting = os.environ.get("MEETING")
if meeting:
    open(os.path.join(os.environ["RESULT_BUCKET_DIR"], meeting + "-" + job), "w").close()
    end = time.monotonic() + 600
    while len(glob.glob(os.path.join(os.environ["RESULT_BUCKET_DIR"], meeting + "-*"))) < 2:
        assert time.monotonic() < end, "the other job did not come"
        time.sleep(0.1)
seen = {
    "env": dict(os.environ), "cwd": os.getcwd(), "uid": os.getuid(), "host": socket.gethostname(),
    "job": listing("/job"), "data": listing(os.environ["DATA_DIR"]), "mnt": listing("/mnt"),
    "input": open(os.path.join(os.environ["DATA_DIR"], "deep", "x.txt")).read(),
    "data_writable": os.access(os.environ["DATA_DIR"], os.W_OK),
    "modes": {n: stat.S_IMODE(os.stat(os.path.join(os.environ["MODEL_DIR"], n)).st_mode) & 0o100
              for n in ("report.sh", "report.py", "sub/data.txt")},
    "tmp": listing("/tmp"), "shm": listing("/dev/shm"), "tmp_space": space("/tmp"),
    "home": listing("/home"), "shared": listing("/shared"), "opt": listing("/opt/ffdl"), "pids": len(listing("/proc")),
    "devices": {path: opened(path) for path in sorted(glob.glob("/dev/nvidia[0-9]"))},
}
json.dump(seen, open(os.path.join(result, "seen-" + me + ".json"), "w"))
open(os.path.join(os.environ["CHECKPOINT_DIR"], "checkpoint-" + me), "w").close()
open(os.path.join(os.environ["LOG_DIR"], "own.log"), "w").close()
print("reported")
"""
REPORT_SH = '#!/usr/bin/env bash\nfor word in "$@"; do echo "word:$word"; done\necho "started in $PWD" >&2\n'


@dataclass(frozen=True)
class Kind:
    """One form of a job."""

    name: str
    learners: int
    copied: bool
    expected: dict[str, str] = field(hash=False)


KINDS = [
    Kind("mounted-1", 1, False, MOUNTED),
    Kind("mounted-2", 2, False, MOUNTED),
    Kind("copied-1", 1, True, COPIED),
    Kind("copied-2", 2, True, COPIED),
]
each_kind = pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.full] if kind.copied else [], id=kind.name) for kind in KINDS],
)
Jobs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def canaries(cluster: Cluster) -> Iterator[None]:
    """Files of somebody else's in every node's /tmp and /dev/shm."""
    nodes = ("n1", "n2", "n3")
    for node in nodes:
        cluster.run(node, ["touch", f"/tmp/{CANARY}", f"/dev/shm/{CANARY}"])
    yield
    for node in nodes:
        cluster.run(node, ["rm", f"/tmp/{CANARY}", f"/dev/shm/{CANARY}"])


def store(alice: Person, copied: bool) -> str:
    """The data store of a manifest; relative to it, as the example of the documentation has it."""
    kind = "directory" if copied else "mount_volume"
    connection = "{path: ../contract, mode: copy}" if copied else "{type: host_mount, path: ../contract}"
    return textwrap.dedent(f"""\
        data_stores:
          - id: here
            type: {kind}
            training_data: {{container: {DATA}}}
            training_results: {{container: {RESULTS}}}
            connection: {connection}
        """)


@pytest.fixture(scope="module")
def model(alice: Person, canaries: None) -> str:
    """The program that reports, and what it is given."""
    alice.run("rm", "-rf", "contract")
    alice.write(f"~/contract/{DATA}/deep/x.txt", "17\n")
    alice.run("mkdir", f"contract/{RESULTS}")
    alice.run("chgrp", GROUP, f"contract/{RESULTS}")
    alice.run("chmod", "g+s", f"contract/{RESULTS}")
    files = {"report.py": REPORT_PY, "report.sh": REPORT_SH, "sub/data.txt": "in a directory\n"}
    model = alice.model("contract", files)
    alice.run("chmod", "-R", "a-x,u+X", model)
    return model


def submitted(alice: Person, model: str, copied: bool) -> dict[str, str]:
    """A job of each number of learners, in one of the two forms."""
    export = "--export=" + ",".join(f"{name}=own" for name in OWN)
    return {
        kind.name: alice.submit(
            alice.manifest(kind.name, COMMAND, store(alice, kind.copied), learners=kind.learners, gpus=2), model, export
        )
        for kind in KINDS
        if kind.copied is copied
    }


def completed(alice: Person, ids: dict[str, str]) -> Jobs:
    """The jobs, once they have."""
    ended = dict(zip(ids, alice.finish_all(list(ids.values())), strict=True))
    for name, job in ended.items():
        assert job["state"] == "COMPLETED", (name, job, alice.logs(job["id"]))
    return ended


@pytest.fixture(scope="module")
def mounted(alice: Person, model: str) -> Jobs:
    """Jobs in the mounted form."""
    return completed(alice, submitted(alice, model, copied=False))


@pytest.fixture(scope="module")
def copied(alice: Person, model: str) -> Jobs:
    """Jobs in the copied form, one of them with another umask."""
    ids = submitted(alice, model, copied=True)
    umask = alice.manifest("umask", f"umask; {COMMAND}", store(alice, copied=True))
    submit = ("ffdl-submit", "--parsable", umask, model)
    ids["umask"] = alice.run("sh", "-c", 'umask 027; exec "$@"', "sh", *submit).stdout.strip()
    return completed(alice, ids)


@pytest.fixture(scope="module")
def meeting(alice: Person, model: str) -> Jobs:
    """Two jobs that must be on one node at the same time."""
    manifest = alice.manifest("meeting", COMMAND, store(alice, copied=False), gpus=2)
    ids = {
        name: alice.submit(manifest, model, "--export=MEETING=meeting", "--nodelist=n3") for name in ("first", "second")
    }
    return completed(alice, ids)


@pytest.fixture
def jobs(request: pytest.FixtureRequest, kind: Kind) -> Jobs:
    """The jobs in the form of the kind."""
    found: Jobs = request.getfixturevalue("copied" if kind.copied else "mounted")
    return found


def seen(alice: Person, job: dict[str, Any], learner: int = 1) -> dict[str, Any]:
    """What a learner reported, from where results are stored."""
    path = f"{alice.home}/contract/{RESULTS}/{job['id']}/seen-{learner}.json"
    return dict(json.loads(alice.read(path)))


def reports(alice: Person, kind: Kind, jobs: Jobs) -> list[dict[str, Any]]:
    """What every learner of the job reported."""
    return [seen(alice, jobs[kind.name], learner) for learner in range(1, kind.learners + 1)]


@each_kind
def test_learner_environment_holds_ffdl_and_rendezvous_variables(alice: Person, jobs: Jobs, kind: Kind) -> None:
    for number, report in enumerate(reports(alice, kind, jobs), 1):
        values = {"id": jobs[kind.name]["id"], "learners": kind.learners, "learner": number, "rank": number - 1}
        expected = {
            name: text if name == "TRAINING_COMMAND" else text.format(**values) for name, text in kind.expected.items()
        }
        assert {name: report["env"].get(name) for name in expected} == expected
        assert report["env"]["MASTER_PORT"] == str(first_port(jobs[kind.name]["id"]))
        assert report["env"]["PYTHONPATH"].split(":")[-1] == "/job/model-code"


@each_kind
def test_learner_environment_keeps_variables_of_user_with_any_name(alice: Person, jobs: Jobs, kind: Kind) -> None:
    for report in reports(alice, kind, jobs):
        assert {name: report["env"].get(name) for name in OWN} == dict.fromkeys(OWN, "own")


@each_kind
def test_learner_environment_excludes_slurm_and_platform_variables(alice: Person, jobs: Jobs, kind: Kind) -> None:
    for report in reports(alice, kind, jobs):
        foreign = ("SLURM_", "SBATCH_", "FFDL_", "DATA_STORE_", "RESULT_STORE_", "MODEL_STORE_")
        found = [name for name in report["env"] if name.startswith(foreign)]
        assert sorted(found) == ["FFDL_ATTEMPT", "FFDL_CHECKPOINT", "FFDL_RESTART"], "only what the contract names"


@each_kind
def test_learner_command_runs_as_shell_text_in_model_directory(alice: Person, jobs: Jobs, kind: Kind) -> None:
    for number in range(1, kind.learners + 1):
        lines = alice.logs(jobs[kind.name]["id"], f"--learner={number}").splitlines()
        words = ["word:first", "word:two  words", f"word:{number}"]
        assert lines == [*words, "started in /job/model-code", "reported"]


@each_kind
def test_learner_model_files_are_executable(alice: Person, jobs: Jobs, kind: Kind) -> None:
    for report in reports(alice, kind, jobs):
        assert set(report["modes"].values()) == {0o100}


@each_kind
def test_learner_reads_training_data_writable_only_when_copied(alice: Person, jobs: Jobs, kind: Kind) -> None:
    for report in reports(alice, kind, jobs):
        assert (report["input"], report["data"]) == ("17\n", ["deep"])
        assert report["data_writable"] is kind.copied
    assert alice.run("ls", f"contract/{DATA}").stdout == "deep\n"


@each_kind
def test_learner_container_has_literal_ffdl_paths(alice: Person, jobs: Jobs, kind: Kind) -> None:
    for report in reports(alice, kind, jobs):
        files = {"load-model.start", "load-model.exit", "load-data.exit", "learner.start_time", "latest-log", "logs"}
        assert {*files, "model-code", jobs[kind.name]["id"]} <= set(report["job"])
        assert set(report["mnt"]) >= {"data", "results"}


@each_kind
def test_job_stores_results_logs_model_and_checkpoints(alice: Person, jobs: Jobs, kind: Kind) -> None:
    kept = f"{alice.home}/contract/{RESULTS}/{jobs[kind.name]['id']}"
    assert jobs[kind.name]["results"] == kept
    names = set(alice.run("find", kept, "-type", "f", "-printf", "%P\n").stdout.split())
    expected = {"_submitted_code/model.zip"}
    for number in range(1, kind.learners + 1):
        logs = ("training-log.txt", "own.log", ".log-copy-complete")
        expected |= {f"seen-{number}.json", *(f"learner-{number}/{name}" for name in logs)}
    assert names == expected
    marks = alice.run("ls", f"{jobs[kind.name]['job_dir']}/checkpoints").stdout.split()
    assert marks == [f"checkpoint-{number}" for number in range(1, kind.learners + 1)]


@each_kind
def test_learner_has_private_empty_tmp_and_shared_memory(alice: Person, jobs: Jobs, kind: Kind) -> None:
    for report in reports(alice, kind, jobs):
        assert report["tmp_space"] > 64 << 20
        assert (report["tmp"], report["shm"]) == ([], [])


@each_kind
def test_learner_container_hides_home_and_shared_directories_of_node(alice: Person, jobs: Jobs, kind: Kind) -> None:
    for report in reports(alice, kind, jobs):
        assert report["home"] in ("ENOENT", [])
        assert (report["shared"], report["opt"]) == ("ENOENT", "ENOENT")
        assert report["env"]["HOME"] == "/tmp"
        assert report["uid"] == USERS["alice"]


@pytest.mark.parametrize(
    "kind", [pytest.param(KINDS[1]), pytest.param(KINDS[3], marks=pytest.mark.full)], ids=lambda kind: kind.name
)
def test_two_learners_run_on_two_nodes_of_one_allocation_over_vxlan(
    alice: Person, jobs: Jobs, mounted: Jobs, kind: Kind
) -> None:
    job = jobs[kind.name]
    hosts = [seen(alice, job, learner)["host"] for learner in (1, 2)]
    assert hosts == [f"learner-{job['id']}-{number}" for number in (0, 1)]
    (master,) = {seen(alice, job, learner)["env"]["MASTER_ADDR"] for learner in (1, 2)}
    assert not ip_address(master).is_loopback
    nodes, tres = alice.accounted(job["native_id"], "NNodes", "AllocTRES")
    assert nodes == "2" and {"gres/gpu=4", "cpu=2", "mem=512M"} <= set(tres.split(","))
    # They have to reach each other, and nobody else.
    assert (job["network"], job["network_by"]) == ("job", "vxlan")
    assert mounted["mounted-1"]["network"] == "none"


@pytest.mark.full
def test_two_jobs_on_one_node_open_only_their_own_gpus(alice: Person, meeting: Jobs) -> None:
    """The device files have no driver: an allowed one says ENXIO, one that the device cgroup denies EPERM."""
    allowed = []
    for name in ("first", "second"):
        report = seen(alice, meeting[name])
        assert meeting[name]["nodes"] == "n3"
        assert report["host"] == f"learner-{meeting[name]['id']}-0"
        assert len(report["env"]["CUDA_VISIBLE_DEVICES"].split(",")) == 2
        assert sorted(report["devices"].values()) == ["ENXIO", "ENXIO", "EPERM", "EPERM"]
        allowed.append({path for path, said in report["devices"].items() if said == "ENXIO"})
    assert not allowed[0] & allowed[1]


@pytest.mark.full
def test_learner_and_stored_results_have_umask_of_submitting_shell_and_group_of_setgid_directory(
    alice: Person, copied: Jobs
) -> None:
    for name, modes in (("umask", ["2750", "640"]), ("copied-1", ["2755", "644"])):
        kept = f"contract/{RESULTS}/{copied[name]['id']}"
        found = alice.run("stat", "--format=%a %G", kept, f"{kept}/seen-1.json").stdout.splitlines()
        assert found == [f"{mode} {GROUP}" for mode in modes]
    assert alice.logs(copied["umask"]["id"]).splitlines()[0].endswith("0027")
