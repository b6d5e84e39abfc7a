"""What learners are told of each other, and how their container shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ffdl_batch.attempt.layout import JobDir
from ffdl_batch.domain.job.elastic import VARIABLES, Elastic
from ffdl_batch.domain.job.learner_layout import lay_on_one, lay_out, members_of
from ffdl_batch.domain.job.spec import BatchOptions, Framework, JobSpec, Placement, Resources, Restart, Retry, Role
from ffdl_batch.domain.launch.placeholders import fill
from ffdl_batch.runtimes.learner_contract import PROTECTED
from ffdl_batch.runtimes.learner_start import RequestRefused, Runtime, Start, Subject, compose_start, refuse_unsupported
from ffdl_batch.runtimes.rendezvous import WAITING, Rendezvous, arrange, first_port

ID = "training-0a1b2c3d4"
JOB = JobDir(f"/s/jobs/{ID}")
PORT = str(first_port(ID))
ALONE = JobSpec("x", Framework("pytorch", "1", "python x.py"), resources=Resources(cpus=1))
FOUR = replace(ALONE, resources=Resources(learners=4, cpus=1))
GPUS = replace(ALONE, resources=Resources(learners=4, cpus=1, gpus=2))
HOROVOD = replace(GPUS, framework=Framework("horovod", "1", "python x.py"))
TOLD = {
    "master_addr": "10.0.0.1", "rank": "3", "local_rank": "1", "local_world_size": "2", "machine_rank": "1",
    "machines": "2", "node_rank": "1", "tf_config": "{}", "role": "worker", "role_index": "2",
    "attempt_dir": "/s/a", "command": "python y.py",
}  # fmt: skip


def start(spec: JobSpec, image: str = "/i.sif", apart: bool = True, failures: int = 0) -> Start:
    members = members_of(spec)
    gang = lay_out(members, Placement.NODE, lambda _: len(members)) if apart else lay_on_one(members)
    assert gang is not None
    return compose_start(Subject(ID, spec, gang, JOB, JOB.attempt(1), failures=failures), Runtime(image))


def variables(spec: JobSpec, image: str = "/i.sif", apart: bool = True) -> dict[str, str]:
    env = start(spec, image, apart).learner.env
    skipped = {"learner_id", "gpus", "resume", "attempt", "restart", "confirmed", "gpu_count"}
    return {k: fill(v, TOLD) for k, v in env.items() if not any(f"{{{name}}}" in v for name in skipped)}


def test_rendezvous_sets_variables_of_every_framework_for_each_learner() -> None:
    found = variables(FOUR)
    expected = {
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": PORT, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1", "NNODES": "2", "NUM_LEARNERS": "4",
        "PET_NNODES": "4", "PET_NODE_RANK": "3", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": PORT, "JAX_COORDINATOR_ADDRESS": f"10.0.0.1:{PORT}", "JAX_NUM_PROCESSES": "4",
        "JAX_PROCESS_ID": "3", "TF_CONFIG": "{}", "LEARNER_NAME_PREFIX": f"learner-{ID}",
        "DOWNWARD_API_POD_NAME": f"learner-{ID}-3",
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected
    assert "FFDL_ROLE" not in found


def test_rendezvous_starts_one_torchrun_process_per_gpu() -> None:
    assert variables(GPUS)["PET_NPROC_PER_NODE"] == "2"
    few = replace(GPUS, batch=BatchOptions(roles={"ps": Role(gpus=4, service=True), "worker": Role(3)}))
    assert variables(few)["PET_NPROC_PER_NODE"] == "2"


@pytest.mark.parametrize(("image", "state"), [("/i.sif", "/job"), ("", f"{JOB.attempt(1).state}")])
def test_rendezvous_sets_mpi_host_files_and_launch_agents(image: str, state: str) -> None:
    found = variables(GPUS, image)
    hosts = {name for name, value in found.items() if value == f"{state}/.hostfile"}
    agents = {name for name, value in found.items() if value == f"{state}/.launch-agent"}
    hydra = {name for name, value in found.items() if value == f"{state}/.machinefile"}
    assert hosts == {"OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"}
    assert hydra == {"HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"}
    of_hydra = {"HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC"}
    assert agents == {"OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"} | of_hydra
    assert (found["HYDRA_LAUNCHER"], found["I_MPI_HYDRA_BOOTSTRAP"], found["I_MPI_PERHOST"]) == ("ssh", "ssh", "2")


def test_rendezvous_sets_only_basic_variables_for_single_learner() -> None:
    found = variables(ALONE)
    shown = {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "NNODES": "1", "NODE_RANK": "1", "MASTER_PORT": PORT}
    assert {name: found[name] for name in shown} == shown
    assert not [name for name in found if name.startswith(("PET_", "JAX_", "TF_", "OMPI_", "PRTE_", "HYDRA_", "I_MPI"))]


def test_start_gives_learners_of_elastic_job_the_batch_of_their_attempt() -> None:
    elastic = Elastic(1, 8, 64, 512, 64, 64, global_batch=128)
    made = start(replace(GPUS, batch=BatchOptions(elasticity=elastic))).learner
    found = {name: made.env[name] for name in (*VARIABLES, "WORLD_SIZE", "NUM_LEARNERS")}
    assert found == {
        "BATCH_SIZE": "16", "GLOBAL_BATCH_SIZE": "128", "LEARNING_RATE_SCALE": "2.0", "WORLD_SIZE": "4",
        "NUM_LEARNERS": "4",
    }  # fmt: skip
    assert set(VARIABLES) <= set(made.protected)
    assert not set(VARIABLES) & set(start(GPUS).learner.env)


def test_rendezvous_sets_role_variables() -> None:
    spec = replace(FOUR, batch=BatchOptions(roles={"ps": Role(1, gpus=1, service=True), "worker": Role(3)}))
    found = start(spec).learner.env
    assert (found["FFDL_ROLE"], found["FFDL_ROLE_INDEX"]) == ("{role}", "{role_index}")
    assert {"FFDL_ROLE", "FFDL_ROLE_INDEX"} <= set(PROTECTED)
    assert found["GPU_COUNT"] == "{gpu_count}.000000"
    assert found["TRAINING_COMMAND"] == "python x.py"


def test_rendezvous_uses_own_command_of_role() -> None:
    roles = {"ps": Role(1, command="python ps.py {x}\necho now", service=True), "worker": Role(3)}
    made = start(replace(FOUR, batch=BatchOptions(roles=roles)))
    assert made.rendezvous.command == "python x.py"
    assert made.rendezvous.commands == {"ps": "python ps.py {x}\necho now"}
    assert made.learner.env["TRAINING_COMMAND"] == "{command}"


def test_rendezvous_starts_mpirun_in_first_learner_of_mpi_framework() -> None:
    made = start(HOROVOD)
    assert made.rendezvous.commands == {"launcher": "mpirun -np 8 python x.py", "worker": WAITING}
    assert "TF_CONFIG" not in made.learner.env
    three = start(replace(HOROVOD, resources=Resources(learners=3, cpus=1)))
    assert three.rendezvous.commands["launcher"] == "mpirun -np 3 python x.py"


@pytest.mark.parametrize(
    ("command", "started"),
    [
        ("python x.py \\\n  --lr 1\n", "python x.py \\\n  --lr 1\n"),
        ("# why\npython 'x.py'\n", "bash -c '# why\npython '\"'\"'x.py'\"'\"'\n'"),
        ("cd sub \\\\\npython x.py", "bash -c 'cd sub \\\\\npython x.py'"),
    ],
)
def test_rendezvous_starts_shell_for_script_of_mpi_framework(command: str, started: str) -> None:
    made = start(replace(HOROVOD, framework=replace(HOROVOD.framework, command=command)))
    assert made.rendezvous.commands["launcher"] == f"mpirun -np 8 {started}"


@pytest.mark.parametrize(("gpus", "command"), [(0, "python x.py"), (1, "python x.py"), (2, "mpirun -np 2 python x.py")])
def test_rendezvous_uses_mpirun_for_single_learner_only_with_several_gpus(gpus: int, command: str) -> None:
    made = start(replace(HOROVOD, resources=Resources(cpus=1, gpus=gpus)))
    assert (made.learner.env["TRAINING_COMMAND"], made.rendezvous.commands) == (command, {})
    assert ("OMPI_MCA_rmaps_base_oversubscribe" in made.learner.env) is (gpus > 1)


def test_compose_start_rejects_mpi_learners_with_gpus_on_shared_node() -> None:
    with pytest.raises(RequestRefused, match="takes learners that share a node for one machine") as error:
        start(HOROVOD, apart=False)
    assert [finding.path for finding in error.value.findings] == ["learners"]


@pytest.mark.parametrize(("spec", "named"), [(ALONE, False), (FOUR, True)])
def test_compose_start_sets_container_name_only_for_several_learners(spec: JobSpec, named: bool) -> None:
    made = start(spec)
    assert made.rendezvous.names == (f"learner-{ID}" if named else "")
    argv = list(made.learner.argv)
    assert ("--hostname" in argv) is named
    assert ("type=bind,source={hosts_file},destination=/etc/hosts,ro" in argv) is named
    if named:
        assert argv[argv.index("--hostname") + 1] == "{name}"
        assert argv.index("--hostname") < argv.index("/i.sif")


def test_first_port_is_stable_aligned_and_within_its_range() -> None:
    drawn = {first_port(f"training-{number:09}") for number in range(3000)}
    assert min(drawn) >= 10_000 and max(drawn) + 63 < 32_768
    assert all((port - 10_000) % 64 == 0 for port in drawn) and len(drawn) > 250
    assert first_port(ID) == first_port(ID)


@pytest.mark.parametrize(
    ("restart", "failures", "site", "expected"),
    [
        (Restart.JOB, 7, 5, ("", 0)),
        (Restart.LEARNER, 7, 5, ("learner", 7)),
        (Restart.LEARNER, 0, 5, ("learner", 0)),
        (Restart.LEARNER, None, 5, ("learner", 5)),
        (Restart.LEARNER, None, 0, ("learner", 3)),
    ],
)
def test_rendezvous_limits_learner_restarts_by_retry_or_site_setting(
    restart: Restart, failures: int | None, site: int, expected: tuple[str, int]
) -> None:
    spec = replace(FOUR, batch=BatchOptions(restart=restart, retry=Retry(failures=failures)))
    made = start(spec, failures=site).rendezvous
    assert (made.restart, made.restarts_max) == expected


def test_arrange_returns_minimal_rendezvous_for_plain_job() -> None:
    assert arrange(ID, ALONE, lay_on_one(members_of(ALONE)), 0) == Rendezvous("", int(PORT), "python x.py")


def test_refuse_unsupported_accepts_roles_and_rejects_conflicting_learner_count() -> None:
    refuse_unsupported(replace(FOUR, batch=BatchOptions(placement=Placement.PACK, roles={"worker": Role(4)})))
    with pytest.raises(RequestRefused, match="the roles have 3 together") as error:
        refuse_unsupported(replace(FOUR, batch=BatchOptions(roles={"worker": Role(3)})))
    assert [finding.path for finding in error.value.findings] == ["learners"]
