"""FfDL's contract with user code: variables, directories, and the shell text that runs the command.

The variables and their values are those of FfDL's learners (AISphere/ffdl-lcm ``learner/envvars.go`` and the
scripts of ``learner-configmap.yml``). Where ours differ, ``docs/reference/contract.md`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ffdl_batch.attempt.layout import AttemptDir, JobDir
from ffdl_batch.domain.launch.launch_file import EXPORTS_VARIABLE
from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.host.fast_dataclass import dataclass

DEFAULT_RESULTS_CONTAINER = "dlaas-trained-models"
"""The bucket in which FfDL stores results if the manifest names none."""
SHARED_CHECKPOINTS = "_wml_checkpoints"
DATA_DIR = "DATA_DIR"
"""Variable of the first store with input; if there are several, it has a number from 1 as well, as the others have."""
AGENT = "; ".join(
    (
        "_ffdl_agent() { set -m",
        "exec 9<> <(:)",
        "printf ffdl-agent >/proc/$BASHPID/comm",
        "while kill -0 $$",
        "do IFS= read -r -t 60 _ffdl_name <&9 || continue",
        "( exec 3<> <(:) 4<> <(:) 5<> <(:) 6<> <(:) 7<> <(:) 9<&-",
        'printf %s "$_ffdl_name" >/proc/$BASHPID/comm',
        'IFS= read -r -t 30 -d "" _ffdl_text <&6 && eval "$_ffdl_text" ) & done',
        "}",
        "_ffdl_agent_pid=$(set -m; _ffdl_agent </dev/null >/dev/null 2>&1 & echo $!) 2>/dev/null",
        "unset -f _ffdl_agent",
    )
)
"""The shell in every learner that waits for a debugging session (``controller/attach/session.py``). It sleeps in a
read, and checks once a minute whether the learner's shell was killed. A name that it reads becomes that of a shell with
pipes at 3 to 7, which evaluates what it reads from 6. set -m gives each of them a process group, and INT, which would
be ignored otherwise. Later releases use it in learners that run."""
_BEFORE = "; ".join(
    (
        f'eval "${{{EXPORTS_VARIABLE}-}}"',
        f"unset {EXPORTS_VARIABLE}",
        # Frameworks keep caches below $HOME; inside a container the home directory is not there.
        '[ -n "${HOME-}" ] && [ -w "$HOME" ] || export HOME=/tmp',
        'printf "%s\\n" "$$" > "$JOB_STATE_DIR/.began-$LEARNER_ID"',
        'cd -- "$MODEL_DIR" || exit 126',
        'export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD"',
        AGENT,
        # Where there are others, they may have their MPI programs started here; no job of this shell's (wait, jobs).
        'if [ -x "$JOB_STATE_DIR/.launch-agent" ]; then '
        '( "$JOB_STATE_DIR/.launch-agent" --serve "$LEARNER_NAME_PREFIX-$((LEARNER_ID - 1))" & ); fi',
    )
)
WRAPPER = "\n".join(
    (
        # bash counts the lines of evaluated text from the line of `eval`, so `eval` must be on the first line.
        f'{_BEFORE}; eval "$TRAINING_COMMAND"',
        "_ffdl_status=$?",
        'kill "$_ffdl_agent_pid" 2>/dev/null',
        # One short write, so that a reader finds all of it or no line end. A controller that died finds it later.
        '{ printf "%s\n" "$_ffdl_status" > "$JOB_STATE_DIR/.ended-$LEARNER_ID"; } 2>/dev/null',
        'exit "$_ffdl_status"',
    )
)
"""What bash runs in every learner. A constant: text of a user is only in the variables that it reads.

It writes its process id (as seen inside) to ``.began-<learner>``, so that the controller knows that the command was
reached, and which process it may signal. The command's status is the learner's. It is also written to
``.ended-<learner>``, unless a signal or an ``exit`` of the command itself ended this shell.
"""
SHELL = ("bash", "-c", WRAPPER)
PROTECTED = (
    "DATA_DIR",
    "RESULT_DIR",
    "RESULT_BUCKET_DIR",
    "CHECKPOINT_DIR",
    "MODEL_DIR",
    "LOG_DIR",
    "JOB_STATE_DIR",
    "TRAINING_ID",
    "TRAINING_COMMAND",
    "NUM_LEARNERS",
    "LEARNER_ID",
    "RESUME",
    "FFDL_ATTEMPT",
    "FFDL_RESTART",
    "FFDL_CHECKPOINT",
    "FFDL_ROLE",
    "FFDL_ROLE_INDEX",
    EXPORTS_VARIABLE,
)
"""Names that a user's environment cannot replace: the platform relies on them."""


@dataclass(frozen=True, slots=True)
class Bind:
    """One directory or file of the host that is visible inside a container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """Input of another store than the first."""

    name: str
    """Its name in the manifest."""
    host: str
    """Its directory on the host."""
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """Directories on the host, and their names in the manifest."""

    job: JobDir
    attempt: AttemptDir
    training_id: str
    data_container: str = ""
    results_container: str = ""
    data: str = ""
    """Host directory with the input; "" = that of the attempt, which is empty or copied into."""
    results_bucket: str = ""
    """Host directory of the whole results container; "" = there is none to show."""
    copied: bool = False
    """FfDL's s3_datastore form."""
    shared_checkpoints: bool = False
    """Whether all jobs of the bucket share FfDL's one directory."""
    bucket_keeps_checkpoints: bool = False
    """Whether the job's own checkpoints are in the bucket, because `job` is deleted with the attempt."""
    results_copied: bool | None = None
    """The form of results; None = as the input's."""
    more: tuple[Input, ...] = ()
    """Further input."""

    @property
    def copies_results(self) -> bool:
        """Whether results have the paths of FfDL's copied form."""
        return self.copied if self.results_copied is None else self.results_copied


@dataclass(frozen=True, slots=True)
class Layout:
    """The directories as the learner sees them, the binds that provide them, and directories that must exist before.

    All texts may hold placeholders of the launch file (``{learner_id}``); literal braces are doubled.
    """

    data_dir: str
    result_dir: str
    result_bucket_dir: str
    checkpoint_dir: str
    model_dir: str
    log_dir: str
    job_state_dir: str
    binds: tuple[Bind, ...] = ()
    make_dirs: tuple[str, ...] = ()
    data_dirs: tuple[str, ...] = ()
    """Those of all input, if there is more than one."""


@dataclass(frozen=True, slots=True)
class Learners:
    """What the variables report to a learner about its job."""

    training_id: str
    command: str
    """"" = the node controller knows it, because learners have different ones."""
    learners: int = 1
    gpus: float | None = 0.0
    """Of each learner; None = they differ."""
    extra: Mapping[str, str] = field(default_factory=dict)


def container_layout(places: Places) -> Layout:
    """Return the layout inside a container: FfDL's literal paths ``/job``, ``/mnt/data`` and ``/mnt/results``."""
    attempt = places.attempt
    results_name = _name(places.results_container) or DEFAULT_RESULTS_CONTAINER
    data_name = _name(places.data_container)
    data_source = places.data or attempt.data
    mount_points = [_inside(attempt.state, "model-code"), _inside(attempt.state, "logs")]
    binds = [Bind(attempt.state, "/job"), Bind(attempt.model, "/job/model-code")]
    data_dir = _data_dir(data_name, places.copied)
    if places.copies_results:
        result_dir = f"/job/{results_name}" if f"/job/{results_name}" != data_dir else f"/job/results/{results_name}"
        bucket_dir, checkpoints = "", "/job/checkpoints"
        mount_points += [_inside(attempt.state, path[len("/job/") :]) for path in (result_dir, checkpoints)]
    else:
        bucket_dir = f"/mnt/results/{results_name}"
        result_dir, checkpoints = f"{bucket_dir}/{places.training_id}", f"{bucket_dir}/{SHARED_CHECKPOINTS}"
        if places.results_bucket:
            binds.append(Bind(places.results_bucket, bucket_dir))
            mount_points += [_inside(places.results_bucket, n) for n in (places.training_id, SHARED_CHECKPOINTS)]
    inputs = [(data_source, data_dir, places.copied)]
    inputs += [(one.host, _data_dir(_name(one.name), one.copied), one.copied) for one in places.more]
    if places.more:
        _check_apart([*(path for _, path, _ in inputs), result_dir])
    for source, path, copied in inputs:
        if copied:
            mount_points.append(_inside(attempt.state, path[len("/job/") :]))
        binds.append(Bind(source, path, read_only=not copied))
    binds.append(Bind(attempt.results, result_dir))
    own_checkpoints = checkpoints_on_host(places)
    if own_checkpoints != _inside(places.results_bucket, SHARED_CHECKPOINTS):
        binds.append(Bind(own_checkpoints, checkpoints))
    literal_binds = [Bind(literal(b.source), literal(b.target), b.read_only) for b in binds]
    logs = Bind(literal(attempt.logs) + "/learner-{learner_id}", "/job/logs")
    return Layout(
        data_dir=literal(data_dir),
        result_dir=literal(result_dir),
        result_bucket_dir=literal(bucket_dir),
        checkpoint_dir=literal(checkpoints),
        model_dir="/job/model-code",
        log_dir="/job/logs",
        job_state_dir="/job",
        binds=(*literal_binds, logs),
        make_dirs=tuple(literal(p) for p in (*mount_points, attempt.data, own_checkpoints)),
        data_dirs=tuple(literal(path) for _, path, _ in inputs) if places.more else (),
    )


def _data_dir(name: str, copied: bool) -> str:
    """Return $DATA_DIR inside a container."""
    if copied:
        return f"/job/{name}" if name else "/job/data"
    return f"/mnt/data/{name}".rstrip("/")


def _check_apart(paths: list[str]) -> None:
    """Raise ValueError if a directory would hide another, or part of it."""
    for index, path in enumerate(paths):
        for other in paths[:index]:
            if f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/"):
                raise ValueError(f"the containers of two data stores would both be at {min(path, other)}; rename one")


def checkpoints_on_host(places: Places) -> str:
    """Return $CHECKPOINT_DIR on the host: the job's own, or FfDL's one of the whole results container."""
    bucket = places.results_bucket and _inside(places.results_bucket, SHARED_CHECKPOINTS)
    if bucket and places.shared_checkpoints and not places.copies_results:
        return bucket
    return _inside(bucket, places.training_id) if bucket and places.bucket_keeps_checkpoints else places.job.checkpoints


def bare_layout(places: Places) -> Layout:
    """Return the layout without a container: the same directories by their paths on the host."""
    attempt = places.attempt
    checkpoints = checkpoints_on_host(places)
    data = places.data or attempt.data
    bucket = "" if places.copies_results else places.results_bucket or attempt.results
    return Layout(
        data_dir=literal(data),
        result_dir=literal(attempt.results),
        result_bucket_dir=literal(bucket),
        checkpoint_dir=literal(checkpoints),
        model_dir=literal(attempt.model),
        log_dir=literal(attempt.logs) + "/learner-{learner_id}",
        job_state_dir=literal(attempt.state),
        make_dirs=(literal(attempt.data), literal(checkpoints)),
        data_dirs=tuple(literal(path) for path in (data, *(one.host for one in places.more))) if places.more else (),
    )


def learner_environment(learners: Learners, layout: Layout) -> dict[str, str]:
    """Return the contract's variables, with placeholders for values that only the node knows. The variables of the
    rendezvous are in :mod:`ffdl_batch.runtimes.rendezvous`."""
    prefix = f"learner-{learners.training_id}"
    fixed = {
        "TRAINING_ID": learners.training_id,
        "NUM_LEARNERS": str(learners.learners),
        "LEARNER_NAME_PREFIX": prefix,
        "DOWNWARD_API_POD_NAMESPACE": "default",
        # The log is a pipe: without this, a Python program's output would appear in blocks of 8 KiB.
        "PYTHONUNBUFFERED": "1",
        **learners.extra,
    }
    env = {name: literal(value) for name, value in fixed.items()}
    env |= {
        "TRAINING_COMMAND": literal(learners.command) if learners.command else "{command}",
        "GPU_COUNT": "{gpu_count}.000000" if learners.gpus is None else f"{learners.gpus:f}",
        "DATA_DIR": layout.data_dir,
        "RESULT_DIR": layout.result_dir,
        "RESULT_BUCKET_DIR": layout.result_bucket_dir,
        "CHECKPOINT_DIR": layout.checkpoint_dir,
        "MODEL_DIR": layout.model_dir,
        "LOG_DIR": layout.log_dir,
        "JOB_STATE_DIR": layout.job_state_dir,
        "DOWNWARD_API_POD_NAME": literal(prefix) + "-{rank}",
        "LEARNER_ID": "{learner_id}",
        "RESUME": "{resume}",
        "FFDL_ATTEMPT": "{attempt}",
        "FFDL_RESTART": "{restart}",
        "FFDL_CHECKPOINT": "{confirmed}",
        # Always set, so that a job without GPUs sees none where the device files are open to all.
        "CUDA_VISIBLE_DEVICES": "{gpus}",
    }
    return env | {f"{DATA_DIR}_{number}": path for number, path in enumerate(layout.data_dirs, 1)}


def _name(container: str) -> str:
    """Return a container name as a relative path. Raises ValueError if it would lead out of its place."""
    parts = [part for part in container.split("/") if part not in ("", ".")]
    if ".." in parts or any(ord(c) < 32 or ord(c) == 127 for c in container):
        raise ValueError(f"{container!r} cannot name a data container; use a plain directory or bucket name")
    return "/".join(parts)


def _inside(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"
