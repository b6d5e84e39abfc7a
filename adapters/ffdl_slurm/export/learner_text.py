"""Write the two shell texts that start a learner: on its node, and in its container. Pure.

Variables pass from the first to the second in a file that only the user can read, and that the second removes. It has
values of secrets, and no container runtime can change them.
"""

from __future__ import annotations

import json

from ffdl_batch.domain.job.array import is_array
from ffdl_batch.domain.job.elastic import elastic_environment
from ffdl_batch.domain.job.learner_layout import Gang, starts_mpi
from ffdl_batch.domain.job.spec import JobSpec
from ffdl_batch.runtimes.learner_contract import Layout, Learners, learner_environment
from ffdl_batch.runtimes.rendezvous import environment
from ffdl_slurm.export.shell_words import JOB, JOB_ID, PORT, exports, word

_PASSED = (
    "RANK", "LEARNER_ID", "LOCAL_RANK", "RESTART", "RESUME", "CUDA_VISIBLE_DEVICES", "GPUS", "MASTER_ADDR",
    "MASTER_PORT", "LEARNERS", "TRAINING_ID", "ROLE", "ROLE_INDEX", "TF_CONFIG", "COMMAND", "HOSTNAME",
)  # fmt: skip
_OURS = ("FFDL_ATTEMPT", "FFDL_RESTART", "FFDL_CHECKPOINT", "OMPI_MCA", "PRTE_MCA", "HYDRA_", "I_MPI_")
"""Beginnings of variables about controllers and the files that they write."""
_ARRAY = "FFDL_ARRAY_ID FFDL_ARRAY_INDEX ${!SLURM_ARRAY_@}"
_PLACE = """\
trap '' {signal}  # it is for the training; this shell would die of it
RANK=$SLURM_PROCID LEARNER_ID=$((SLURM_PROCID + 1)) LOCAL_RANK=${{SLURM_LOCALID:-0}} HOSTNAME=${{SLURMD_NODENAME-}}
RESTART=${{SLURM_RESTART_COUNT:-0}} RESUME=0 CUDA_VISIBLE_DEVICES=${{CUDA_VISIBLE_DEVICES-}}
GPUS=0; [ -z "$CUDA_VISIBLE_DEVICES" ] || GPUS=$(($(printf %s "$CUDA_VISIBLE_DEVICES" | tr -cd , | wc -c) + 1))
[ "$RESTART" -eq 0 ] || RESUME=1"""
_CONFIG = r"""
TF_CONFIG=
if [ -n "$TF_CLUSTER" ]; then
  TF_CONFIG="{\"cluster\": $TF_CLUSTER, \"task\": {\"type\": \"${ROLE:-worker}\", \"index\": $ROLE_INDEX}}"
fi"""


def cluster_lines(spec: JobSpec, gang: Gang) -> list[str]:
    """Return the lines that set the cluster of TF_CONFIG. Each learner has a node."""
    if len(gang.members) == 1 or starts_mpi(spec):
        return ["TF_CLUSTER="]
    cluster: dict[str, list[str]] = {}
    for rank, member in enumerate(gang.members):
        cluster.setdefault(member.role or "worker", []).append(f"@{rank}@:@PORT@")
    cluster.pop("evaluator", None)
    return [
        f"TF_CLUSTER={word(json.dumps(cluster), filled=False)}",
        "TF_CLUSTER=${TF_CLUSTER//@PORT@/$MASTER_PORT}",
        'for i in "${!HOSTS[@]}"; do TF_CLUSTER=${TF_CLUSTER//@$i@/${HOSTS[i]}}; done',
    ]


def task_lines(spec: JobSpec, gang: Gang, layout: Layout) -> list[str]:
    """Return the lines that run on a learner's node."""
    made = dict.fromkeys(word(bind.source) for bind in layout.binds if bind.source.startswith(JOB))
    made |= dict.fromkeys(word(path) for path in layout.make_dirs)
    binds = []
    for bind in layout.binds:
        mode = ":ro" if bind.read_only else ""
        binds.append(f"  --bind {word(bind.source)}:{word(bind.target)}{mode}")
    vendor = " --nv" if gang.load.gpus else ""
    return [
        *_PLACE.format(signal=spec.batch.checkpoint.signal).splitlines(),
        *_roles(spec, gang),
        *_CONFIG.strip().splitlines(),
        f"mkdir -p {' '.join(made)} || exit 1",
        "SAID=.said-$LEARNER_ID TMP=$(mktemp -d) || exit 1",
        # Learners may leave read-only directories in their /tmp, as Go and conda do.
        'trap \'chmod -R u+rwx "$TMP"; rm -rf "$TMP" "$JOB/state/$SAID"\' EXIT',
        f"(umask 077; for name in {_names(spec)}; do",
        '  printf \'export %s=%q\\n\' "$name" "${!name-}"',
        'done >"$JOB/state/$SAID")',
        f'learner=("$APPTAINER" -q exec --containall --no-home --workdir "$TMP"{vendor}',
        *binds,
        '  --bind "$JOB"/hosts:/etc/hosts:ro --pwd /job "$IMAGE"',
        # bash counts the lines of evaluated text from the line of `eval`, which is therefore the first one.
        """  bash -c 'eval "$2"; set --; eval "$TRAINING_COMMAND"' learner "/job/$SAID" "$INSIDE")""",
        *_run(gang),
    ]


def _names(spec: JobSpec) -> str:
    found = [*_PASSED, *spec.batch.secrets, *_swept(spec)]
    found += [_ARRAY] if is_array(spec) else []
    return " ".join([*found, *(["${!SLURM_@}"] if spec.batch.slurm_environment else [])])


def _swept(spec: JobSpec) -> dict[str, None]:
    """Return the names of the variables that the sweep sets, in order."""
    return dict.fromkeys(name for values in spec.batch.sweep for name in values)


def _roles(spec: JobSpec, gang: Gang) -> list[str]:
    """Return the lines that set role, number in the role, and command of each learner."""
    commands = {name: role.command for name, role in spec.batch.roles.items() if role.command}
    whole = spec.framework.command
    if starts_mpi(spec) or not any(member.role for member in gang.members):
        return [f"ROLE= ROLE_INDEX=$RANK SERVICE= COMMAND={word(whole, filled=False)}"]
    lines = ["case $RANK in"]
    for rank, member in enumerate(gang.members):
        command = word(commands.get(member.role, whole), filled=False)
        service = "1" if member.service else ""
        lines.append(f"  {rank}) ROLE={member.role} ROLE_INDEX={member.index} SERVICE={service} COMMAND={command} ;;")
    return [*lines, "esac"]


def _run(gang: Gang) -> list[str]:
    log = '"$JOB"/logs/learner-"$LEARNER_ID"/training-log.txt'
    trainees = sum(not member.service for member in gang.members)
    lines = ['rm -f "$JOB"/state/.ended-"$LEARNER_ID"']
    if trainees < len(gang.members):
        lines += [
            'if [ -n "$SERVICE" ]; then  # it waits for ever, and is ended when the others are done',
            f'  "${{learner[@]}}" >>{log} 2>&1 & pid=$!',
            '  while kill -0 "$pid" 2>/dev/null; do',
            f'    [ "$(ls -d "$JOB"/state/.ended-* 2>/dev/null | wc -l)" -lt {trainees} ] || kill "$pid"',
            "    sleep 1",
            "  done",
            "  exit 0",
            "fi",
        ]
    return [
        *lines,
        f'"${{learner[@]}}" 2>&1 | tee -a {log}',
        "status=${PIPESTATUS[0]}",
        ': >"$JOB"/state/.ended-"$LEARNER_ID"',
        'exit "$status"',
    ]


def inside_lines(spec: JobSpec, gang: Gang, layout: Layout, tasks: int) -> list[str]:
    """Return the shell text that sets the contract's variables in a learner's container before the command."""
    count, elasticity = len(gang.members), spec.batch.elasticity
    sizes = {} if elasticity is None else elastic_environment(elasticity, count, spec.resources.gpus)
    learners = Learners(JOB_ID, "", count, None if gang.load.gpus else 0.0, sizes)
    contract = learner_environment(learners, layout) | environment(spec, gang, PORT, layout.job_state_dir)
    passed = {*_PASSED, *spec.batch.secrets, *_swept(spec)}
    kept = {name: text for name, text in contract.items() if name not in passed and not name.startswith(_OURS)}
    return [
        '. "$1"; rm -f "$1"',
        *exports(kept),
        *exports(spec.batch.env, filled=False),
        *(["unset RANK LOCAL_RANK WORLD_SIZE  # MPI says them"] if tasks > 1 else []),
        '[ -n "${HOME-}" ] && [ -w "$HOME" ] || export HOME=/tmp',
        'cd -- "$MODEL_DIR" || exit 126',
        'export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD"',
    ]
