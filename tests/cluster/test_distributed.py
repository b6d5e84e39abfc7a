"""Several learners on real Slurm: real PyTorch, torchrun, mpirun, a reader of TF_CONFIG, FfDL's parameter servers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.cluster.conftest import CONFIG
from tests.cluster.executions import wait_until
from tests.cluster.images import CHECKOUT, provide_image
from tests.cluster.people import Person
from tests.cluster.rig import Cluster
from tests.cluster.rig.python_layers import SOURCE
from tests.cluster.trainings import attempt_log

EXAMPLES = f"{SOURCE}/docs/examples"
FFDL_MPI = '\n[frameworks.pytorchmpi]\nversions = { debian = "/shared/images/pytorch.sif" }\n'
NODE_MEMORY_SHARE = {"memory: 1GiB": "memory: 1700MiB"}
"""Two learners on a node: the nodes have 4000 MiB."""
SHORTER = {"train.py\n": "train.py --steps 50\n"}
PATIENCE_S = 1200
"""Of jobs that take two minutes on two cores with nothing beside."""
AT_HOST = {"placement: pack": "placement: pack\n  network: host"}
ON_HOSTS = "learners on the nodes' network"
ALONE = {"learners: 4": "learners: 1", "placement: pack": "placement: node"}
TF_READER = '''\
"""Every worker listens at its own address in TF_CONFIG, and calls all the others."""
import json, os, socket, threading, time

config = json.loads(os.environ["TF_CONFIG"])
hosts, own = config["cluster"]["worker"], config["task"]["index"]
assert config["task"]["type"] == "worker" and len(hosts) == int(os.environ["NUM_LEARNERS"])
assert len(set(hosts)) == len(hosts), hosts
heard = []
host, port = hosts[own].rsplit(":", 1)
server = socket.create_server((host, int(port)))

def listen():
    while len(heard) < len(hosts) - 1:
        connection = server.accept()[0]
        heard.append(int(connection.makefile().readline()))

listener = threading.Thread(target=listen)
listener.start()
for number in range(len(hosts)):
    if number == own:
        continue
    there, port = hosts[number].rsplit(":", 1)
    for _ in range(3000):
        try:
            with socket.create_connection((there, int(port)), timeout=60) as connection:
                connection.sendall(f"{own}\\n".encode())
            break
        except OSError:
            time.sleep(0.1)
listener.join(600)
print("heard", sorted(heard), flush=True)
assert sorted(heard) == [number for number in range(len(hosts)) if number != own]
'''
TORCHRUN = '''\
"""torchrun with its own meeting place, in agents and workers, but without libuv, which Debian's PyTorch lacks."""
import functools, os, runpy, sys
import torch.distributed as dist
from torch.distributed import run
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

plain = functools.partial(dist.TCPStore, use_libuv=False)
static_tcp_rendezvous.TCPStore = sys.modules["torch.distributed.rendezvous"].TCPStore = plain
if "TORCHELASTIC_RUN_ID" in os.environ:
    sys.argv[1:] = ["--steps", "50"]
    runpy.run_path("train.py", run_name="__main__")
else:
    run.main(["--nproc_per_node", "2", __file__])
'''
TOLD = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "NNODES",
    "LEARNER_ID",
    "NUM_LEARNERS",
    "LEARNER_NAME_PREFIX",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_NPROC_PER_NODE",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
)
NAMES = (
    "import json, os, socket; n = int(os.environ['NUM_LEARNERS']); p = os.environ['LEARNER_NAME_PREFIX']; "
    "print('names', json.dumps([[socket.gethostbyname(f'{p}-{i}'), socket.gethostbyname(f'{p}-{i}.{p}')] "
    "for i in range(n)])); print('own', socket.gethostname()); print('told', json.dumps(dict(os.environ)))"
)


def _example(alice: Person, manifest: str, name: str, changes: Mapping[str, str]) -> str:
    """Submit an example with other texts in its manifest."""
    text = (CHECKOUT / "docs" / "examples" / manifest).read_text()
    for old, new in {**changes, **(SHORTER if "train.py" in text else {})}.items():
        assert old in text, (manifest, old)
        text = text.replace(old, new)
    path = alice.write(f"~/manifests/{name}.yml", text)
    return alice.submit(path, f"{EXAMPLES}/{manifest.partition('/')[0]}/model")


@pytest.fixture(scope="module")
def runner(alice: Person) -> Iterator[Person]:
    """alice, whose site names an image for FfDL's pytorchmpi."""
    alice.run("ffdl", "daemon", "stop", check=False)
    alice.write("~/.config/ffdl/config.toml", CONFIG + FFDL_MPI)
    yield alice
    alice.run("ffdl", "daemon", "stop", check=False)
    alice.write("~/.config/ffdl/config.toml", CONFIG)


@pytest.fixture(scope="module")
def trained(cluster: Cluster, runner: Person) -> Mapping[str, Mapping[str, Any]]:
    """The example for several learners, in every way in which it can be started, and on one learner."""
    provide_image(cluster, "pytorch")
    ffdl_mpi = {"name: pytorch\n": "name: pytorchmpi\n"}
    ways: dict[str, tuple[str, Mapping[str, str]]] = {
        "alone": ("distributed/manifest.yml", ALONE),
        "learners": ("distributed/manifest.yml", NODE_MEMORY_SHARE),
        "torchrun": ("distributed/torchrun.yml", NODE_MEMORY_SHARE),
        "mpirun": ("distributed/mpi.yml", NODE_MEMORY_SHARE),
        "pytorchmpi": ("distributed/manifest.yml", {**NODE_MEMORY_SHARE, **ffdl_mpi}),
        ON_HOSTS: ("distributed/manifest.yml", {**NODE_MEMORY_SHARE, **AT_HOST}),
    }
    train = (CHECKOUT / "docs" / "examples" / "distributed" / "model" / "train.py").read_text()
    static = runner.model("torchrun", {"train.py": train, "torchrun.py": TORCHRUN})
    ids = {
        way: _example(runner, manifest, f"distributed-{way}".replace(" ", "-"), text)
        for way, (manifest, text) in ways.items()
    }
    command = "python3 torchrun.py"
    text = runner.read(f"{runner.home}/manifests/distributed-learners.yml").replace(
        "python3 train.py --steps 50", command
    )
    assert command in text
    ids["torchrun's own"] = runner.submit(runner.write("~/manifests/static.yml", text), static)
    return dict(zip(ids, runner.finish_all(list(ids.values()), timeout_s=PATIENCE_S), strict=True))


def _three(name: str, command: str, extra: str) -> Callable[[Person], str]:
    return lambda runner: runner.start(name, command, gpus=0, learners=3, extra=extra)


def _told(gpus: int, level: str) -> Callable[[Person], str]:
    """Three learners, two of them on one node."""
    return lambda runner: runner.submit(
        runner.manifest(
            f"told-{gpus}-{level}",
            "python3 names.py",
            f"batch: {{placement: pack, network: {level}}}",
            gpus=gpus,
            learners=3,
            memory="1700MiB",
        ),
        runner.model("names", {"names.py": NAMES}),
    )


def _reads_tf_config(runner: Person) -> str:
    manifest = runner.manifest(
        "tf-config", "python3 reader.py", "batch: {placement: pack}", gpus=0, learners=4, memory="1700MiB"
    )
    return runner.submit(manifest, runner.model("tf-reader", {"reader.py": TF_READER}))


ONE_FAILS = 'if [ "$LEARNER_ID" = 3 ]; then sleep 2; exit 7; fi; sleep 600'
ONE_FAILS_ONCE = (
    'echo "run of $LEARNER_ID"; if [ "$LEARNER_ID" = 2 ] && ! [ -e "$RESULT_DIR/second" ]; then '
    'touch "$RESULT_DIR/second"; exit 3; fi; sleep 4'
)
SMALL: Mapping[str, Callable[[Person], str]] = {
    "parameter servers": lambda runner: _example(runner, "parameter-servers/manifest.yml", "parameter-servers", {}),
    "TF_CONFIG": _reads_tf_config,
    **{f"shown, {gpus} GPUs, {level}": _told(gpus, level) for gpus, level in ((0, "host"), (1, "host"), (0, "job"))},
    "one fails": _three("one-fails", ONE_FAILS, "batch: {placement: spread}"),
    "one fails once": _three("restarts", ONE_FAILS_ONCE, "batch: {placement: spread, restart: learner}"),
}


ALWAYS = "shown, 0 GPUs, job"
"""The one of `make test`."""


@pytest.fixture(scope="module")
def small(alice: Person) -> Mapping[str, Mapping[str, Any]]:
    """The short job of `make test`."""
    return {ALWAYS: alice.finish(SMALL[ALWAYS](alice), timeout_s=PATIENCE_S)}


@pytest.fixture(scope="module")
def small_in_full(runner: Person) -> Mapping[str, Mapping[str, Any]]:
    """The others: most of what each takes is waiting for Slurm, so they wait together."""
    ids = {name: submit(runner) for name, submit in SMALL.items() if name != ALWAYS}
    return dict(zip(ids, runner.finish_all(list(ids.values()), timeout_s=PATIENCE_S), strict=True))


def _losses(person: Person, job: Mapping[str, Any]) -> tuple[int, list[float]]:
    assert job["state"] == "COMPLETED", (job["message"], attempt_log(person, job, 1))
    result = json.loads(person.read(f"{job['job_dir']}/attempt-1/results/result.json"))
    return result["processes"], result["losses"]


@pytest.mark.parametrize(
    ("way", "processes"),
    [("learners", 4), (ON_HOSTS, 4), ("torchrun", 8), ("torchrun's own", 8), ("mpirun", 4), ("pytorchmpi", 4)],
)
@pytest.mark.full
def test_distributed_job_on_two_nodes_matches_losses_of_single_process(
    runner: Person, trained: Mapping[str, Mapping[str, Any]], way: str, processes: int
) -> None:
    one, expected = _losses(runner, trained["alone"])
    many, losses = _losses(runner, trained[way])
    assert (one, many) == (1, processes)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0] / 2
    hosts = runner.accounted(trained[way]["native_id"], "NNodes")
    assert hosts == ["2"], (way, hosts)
    network = trained[way]["network"], trained[way]["network_by"]
    assert network == (("host", "none") if way == ON_HOSTS else ("job", "vxlan"))


@pytest.mark.full
def test_parameter_server_example_trains_expected_weights(
    runner: Person, small_in_full: Mapping[str, Mapping[str, Any]]
) -> None:
    job = small_in_full["parameter servers"]
    assert job["state"] == "COMPLETED", (job["message"], attempt_log(runner, job, 1, 2))
    assert "serving on learner-" in attempt_log(runner, job, 1, 1)
    for worker in (1, 2):
        weights = json.loads(runner.read(f"{job['job_dir']}/attempt-1/results/worker-{worker}.json"))
        assert weights == pytest.approx([3.0, -2.0, 0.5, 1.0], abs=0.2)  # the other's last gradient may be an old one


@pytest.mark.full
def test_learners_reach_all_peers_through_tf_config(
    runner: Person, small_in_full: Mapping[str, Mapping[str, Any]]
) -> None:
    job = small_in_full["TF_CONFIG"]
    assert job["state"] == "COMPLETED", (job["message"], attempt_log(runner, job, 1))
    for learner in range(1, 5):
        others = [number for number in range(4) if number != learner - 1]
        assert f"heard {others}" in attempt_log(runner, job, 1, learner)


@pytest.mark.parametrize(
    ("fixture", "gpus", "level"),
    [
        ("small", 0, "job"),
        pytest.param("small_in_full", 0, "host", marks=pytest.mark.full),
        pytest.param("small_in_full", 1, "host", marks=pytest.mark.full),
    ],
)
def test_learner_environment_holds_ranks_names_and_master_address(
    alice: Person, request: pytest.FixtureRequest, fixture: str, gpus: int, level: str
) -> None:
    """Three learners, two of them on one node."""
    job = request.getfixturevalue(fixture)[f"shown, {gpus} GPUs, {level}"]
    assert job["state"] == "COMPLETED", (job["message"], attempt_log(alice, job, 1))
    logs = [attempt_log(alice, job, 1, learner) for learner in (1, 2, 3)]
    told = [json.loads(re.findall(r"^told (\{.*\})$", log, re.MULTILINE)[0]) for log in logs]
    names = [json.loads(re.findall(r"^names (\[.*\])$", log, re.MULTILINE)[0]) for log in logs]
    prefix = f"learner-{job['id']}"
    assert [re.findall(r"^own (.*)$", log, re.MULTILINE) for log in logs] == [[f"{prefix}-{i}"] for i in range(3)]
    assert names[0] == names[1] == names[2]
    addresses = [short for short, _ in names[0]]
    assert addresses == [long for _, long in names[0]]
    if level == "job":
        assert addresses == ["10.200.0.1", "10.200.0.2", "10.200.1.1"]
    else:
        assert addresses[0] == addresses[1] != addresses[2] and not any(a.startswith("127.") for a in addresses)
    columns = {name: [one.get(name) for one in told] for name in TOLD}
    ports = columns.pop("MASTER_PORT")
    assert len(set(ports)) == 1 and 10000 <= int(ports[0]) < 32768 and columns.pop("PET_MASTER_PORT") == ports
    machine = (
        {"LOCAL_RANK": ["0"] * 3, "LOCAL_WORLD_SIZE": ["1"] * 3, "NODE_RANK": ["0", "1", "2"], "NNODES": ["3"] * 3}
        if gpus
        else {
            "LOCAL_RANK": ["0", "1", "0"],
            "LOCAL_WORLD_SIZE": ["2", "2", "1"],
            "NODE_RANK": ["0", "0", "1"],
            "NNODES": ["2"] * 3,
        }
    )
    assert columns == {
        **machine,
        "MASTER_ADDR": addresses[:1] * 3,
        "RANK": ["0", "1", "2"],
        "WORLD_SIZE": ["3"] * 3,
        "LEARNER_ID": ["1", "2", "3"],
        "NUM_LEARNERS": ["3"] * 3,
        "LEARNER_NAME_PREFIX": [prefix] * 3,
        "PET_NNODES": ["3"] * 3,
        "PET_NODE_RANK": ["0", "1", "2"],
        "PET_NPROC_PER_NODE": ["1"] * 3,
        "PET_MASTER_ADDR": addresses[:1] * 3,
    }


@pytest.mark.full
def test_job_fails_with_exit_status_of_failed_learner(small_in_full: Mapping[str, Mapping[str, Any]]) -> None:
    job = small_in_full["one fails"]
    assert (job["state"], job["exit_code"], job["error_code"]) == ("FAILED", 7, "C201"), job


@pytest.mark.full
def test_restart_learner_policy_restarts_only_the_failed_learner(
    runner: Person, small_in_full: Mapping[str, Mapping[str, Any]]
) -> None:
    """The others go on meanwhile."""
    job = small_in_full["one fails once"]
    assert (job["state"], len(job["attempts"])) == ("COMPLETED", 1), job
    runs = [attempt_log(runner, job, 1, learner).count("run of") for learner in (1, 2, 3)]
    assert runs == [1, 2, 1]


@pytest.mark.full
def test_roles_run_their_own_commands_and_workers_get_one_gpu_each(runner: Person) -> None:
    extra = (
        "batch:\n  placement: pack\n  roles:\n"
        "    ps: {learners: 1, gpus: 0, command: 'echo ps; sleep 600'}\n"
        "    worker: {learners: 2, gpus: 1}\n"
    )
    command = 'echo "worker sees $CUDA_VISIBLE_DEVICES of $GPU_COUNT"'
    manifest = runner.manifest("roles", command, extra, learners=3)
    job = runner.finish(runner.submit(manifest, runner.model("empty", {"README": "nothing here\n"})))
    assert job["state"] == "COMPLETED", job
    first, *workers = (attempt_log(runner, job, 1, learner) for learner in (1, 2, 3))
    assert first.strip() == "ps"
    seen = [re.findall(r"^worker sees (\d+) of 1\.000000$", log, re.MULTILINE) for log in workers]
    assert all(len(found) == 1 for found in seen), (seen, workers)


@pytest.mark.full
def test_submit_rejects_more_learners_than_nodes_and_suggests_pack_placement(runner: Person) -> None:
    manifest = runner.manifest("too-many", "true", gpus=0, learners=4)
    result = runner.run("ffdl-submit", manifest, runner.model("empty", {"README": "nothing\n"}), check=False)
    assert result.returncode != 0
    assert "4 learners need a node each" in result.stderr and "placement: pack" in result.stderr


@pytest.mark.full
def test_halt_ends_job_when_service_role_ignores_checkpoint_request(runner: Person) -> None:
    """All are asked; the job halts though a service never saves anything."""
    command = "trap 'exit 0' USR2; echo begun; while :; do sleep 0.2; done"
    extra = "batch:\n  checkpoint: {grace_s: 4}\n  placement: pack\n  roles:\n    worker: {learners: 2}\n"
    extra += "    ps: {learners: 1, command: 'while :; do sleep 0.2; done'}\n"
    job_id = runner.start("halted-roles", command, gpus=0, learners=3, extra=extra)
    runner.until(job_id, {"PROCESSING"})
    job = runner.show(job_id)
    wait_until(
        lambda: all("begun" in attempt_log(runner, job, 1, learner) for learner in (1, 2)), "the workers to begin"
    )
    runner.run("ffdl", "halt", job_id)
    assert runner.finish(job_id)["state"] == "HALTED"
