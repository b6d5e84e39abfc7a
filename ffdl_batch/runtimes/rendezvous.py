"""Plans how the learners of a job find each other: variables of frameworks and MPI launchers, names, ports, commands.
Pure.

Values hold placeholders that the node controllers fill. Sources of the names:

- torchrun takes ``PET_<OPTION>`` for each of its options: PyTorch, ``torch/distributed/argparse_util.py``, ``run.py``.
- jax.distributed.initialize() reads only JAX_COORDINATOR_ADDRESS (JAX, ``jax/_src/distributed.py``); the number of
  processes and the own one are its arguments, and by convention JAX_NUM_PROCESSES and JAX_PROCESS_ID.
- Open MPI 4: ``orte/runtime/orte_mca_params.c``, ``orte/mca/plm/rsh``. Open MPI 5 is launched by PRRTE 3:
  ``src/runtime/prte_mca_params.c``, ``src/mca/plm/ssh``.
- MPICH: ``src/pm/hydra``, ``mpiexec/get_parameters.c`` and ``lib/tools/bootstrap/src/bsci_init.c.in``. Its host file
  has ``name:count`` (``lib/utils/args.c``); Open MPI's ``name slots=count`` is an error to it, so there are two files.
- Intel MPI, a Hydra too: Developer Reference for Linux, "Hydra Environment Variables".
"""

from __future__ import annotations

import re
import shlex
import zlib
from collections.abc import Mapping
from dataclasses import field

from ffdl_batch.domain.job.learner_layout import LAUNCHER, WORKER, Gang, starts_mpi
from ffdl_batch.domain.job.spec import JobSpec, Restart
from ffdl_batch.domain.launch.launch_file import RESTART_LEARNER
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.slurm_steps import runs_alone

HOST_FILE, HYDRA_HOST_FILE, LAUNCH_AGENT = ".hostfile", ".machinefile", ".launch-agent"
"""In $JOB_STATE_DIR; node controllers write them."""
FIRST_PORT, RANGES, RANGE = 10_000, 300, 64
"""A job gets one of RANGES ranges of RANGE ports: 10000 to 29199, below those that Linux gives to outgoing connections
(ip_local_port_range, 32768 and up)."""
LEAST_RESTARTS = 3
WAITING = "while sleep 3600; do :; done"
"""The command of MPI workers: they wait until they are ended."""

_ENDS_LINE = re.compile(r"(?<!\\)(?:\\\\)*\n")
"""Matches a line break that bash sees. mpirun starts one program, so a script of several lines needs a shell."""
_OVERSUBSCRIBED = {
    "OMPI_MCA_rmaps_base_oversubscribe": "true",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""For one learner with several processes: without a host file Open MPI starts at most one per core."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Fields of a launch file that are about several learners."""

    names: str
    ports: int
    command: str
    commands: Mapping[str, str] = field(default_factory=dict)
    restart: str = ""
    restarts_max: int = 0


def arrange(job_id: str, spec: JobSpec, gang: Gang, failures: int) -> Rendezvous:
    """Return the rendezvous of a job. `failures` is how many failed attempts it may have by the site's setting, which
    counts if the manifest has none."""
    command, commands = _commands(spec, gang)
    alone = len(gang.members) == 1
    asked = spec.batch.retry.failures
    singly = spec.batch.restart is Restart.LEARNER
    return Rendezvous(
        names="" if alone else name_prefix(job_id),
        ports=first_port(job_id),
        command=command,
        commands=commands,
        restart=RESTART_LEARNER if singly else "",
        restarts_max=(max(LEAST_RESTARTS, failures) if asked is None else asked) if singly else 0,
    )


def name_prefix(job_id: str) -> str:
    """Return FfDL's prefix: learners are ``<prefix>-<i>`` and ``<prefix>-<i>.<prefix>``, i from 0."""
    return f"learner-{job_id}"


def first_port(job_id: str) -> int:
    """Return the first of the job's own ports. It depends only on the job: an attempt is planned before it has a number
    (:data:`ffdl_batch.domain.launch.launch_file.TEMPLATE`)."""
    return FIRST_PORT + zlib.crc32(job_id.encode()) % RANGES * RANGE


def slots(gang: Gang) -> int:
    """Return the processes that a learner is made for: one for each GPU, else one. Launchers use one number for all."""
    return max(1, *(one.load.gpus for one in gang.members if not one.service), 0)


def environment(spec: JobSpec, gang: Gang, ports: int, state_dir: str) -> dict[str, str]:
    """Return the variables of each learner. `state_dir` is $JOB_STATE_DIR as learners see it, and may hold
    placeholders.

    Variables of a single learner have no placeholders that older controllers do not fill.
    """
    found = {
        "MASTER_ADDR": "{master_addr}",
        "MASTER_PORT": str(ports),
        "RANK": "{rank}",
        "WORLD_SIZE": str(len(gang.members)),
        "LOCAL_RANK": "{local_rank}",
    }
    if any(one.role for one in gang.members):
        found |= {"FFDL_ROLE": "{role}", "FFDL_ROLE_INDEX": "{role_index}"}
    if len(gang.members) == 1:
        found |= {"LOCAL_WORLD_SIZE": "1", "NODE_RANK": "{node_rank}", "NNODES": "1"}
        return found | (_OVERSUBSCRIBED if starts_mpi(spec) and slots(gang) > 1 else {})
    found |= {"LOCAL_WORLD_SIZE": "{local_world_size}", "NODE_RANK": "{machine_rank}", "NNODES": "{machines}"}
    found |= _of_launchers(state_dir, slots(gang))
    if runs_alone(
        spec
    ):  # it arranges itself how its tasks meet; a torchrun with the addresses of others would wait for them
        return found
    found |= _of_frameworks(gang, ports)
    if not starts_mpi(spec):
        # TensorFlow's estimators take the cluster in TF_CONFIG for theirs, Horovod or not.
        found["TF_CONFIG"] = "{tf_config}"
    return found


def _of_frameworks(gang: Gang, ports: int) -> dict[str, str]:
    learners = str(len(gang.members))
    return {
        "PET_NNODES": learners,
        "PET_NODE_RANK": "{rank}",
        "PET_NPROC_PER_NODE": str(slots(gang)),
        "PET_MASTER_ADDR": "{master_addr}",
        "PET_MASTER_PORT": str(ports),
        "JAX_COORDINATOR_ADDRESS": f"{{master_addr}}:{ports}",
        "JAX_NUM_PROCESSES": learners,
        "JAX_PROCESS_ID": "{rank}",
    }


def _of_launchers(state_dir: str, processes: int) -> dict[str, str]:
    host_file, hydra = f"{state_dir}/{HOST_FILE}", f"{state_dir}/{HYDRA_HOST_FILE}"
    agent = f"{state_dir}/{LAUNCH_AGENT}"
    return {
        "OMPI_MCA_orte_default_hostfile": host_file,
        "OMPI_MCA_plm_rsh_agent": agent,
        "PRTE_MCA_prte_default_hostfile": host_file,
        "PRTE_MCA_plm_ssh_agent": agent,
        "HYDRA_HOST_FILE": hydra,
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": agent,
        "I_MPI_HYDRA_HOST_FILE": hydra,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": agent,
        "I_MPI_PERHOST": str(processes),
    }


def _commands(spec: JobSpec, gang: Gang) -> tuple[str, dict[str, str]]:
    """Return the job's command and those of the roles that have another."""
    command = spec.framework.command
    if not starts_mpi(spec):
        return command, {name: role.command for name, role in spec.batch.roles.items() if role.command}
    processes = sum(max(1, one.load.gpus) for one in gang.members)
    program = f"bash -c {shlex.quote(command)}" if _ENDS_LINE.search(command.strip()) else command
    wrapped = f"mpirun -np {processes} {program}"
    if len(gang.members) == 1:
        return (wrapped if processes > 1 else command), {}
    return command, {LAUNCHER: wrapped, WORKER: WAITING}
