"""Build the command that runs a learner in a container of enroot, which Pyxis uses to start containers on a node.

Facts are from enroot's source (4.1, ``enroot.in``, ``src/runtime.sh``): ``enroot start`` ends in an exec, so the
process that the controller started becomes the learner; environment variables override ``enroot.conf``;
``--mount`` takes the fields of an fstab line, separated by colons, without white space; ``--rc`` replaces the image's
entry point. docs/decisions/0030 has the reasons.
"""

from __future__ import annotations

from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.runtimes.apptainer import Container, GpuLibraries, NetworkMode
from ffdl_batch.runtimes.learner_contract import Bind

PROGRAM = "enroot"
ENVIRONMENT = "/.ffdl-environment"
"""Path in the container of the file with the learner's variables. Enroot itself reads variables line by line, so
values with line breaks would be lost."""
PREPARE = "\n".join(
    (
        # $1: the image; $2: the node's directory of the attempt; $3: this learner's; $4: its number of GPUs or "none".
        "image=$1 place=$2/enroot own=$3 gpus=$4; shift 4; tmp=$own/tmp file=$place/image.sqsh",
        "export ENROOT_DATA_PATH=$place ENROOT_TEMP_PATH=$tmp ENROOT_RUNTIME_PATH=$own/run",
        "export ENROOT_ROOTFS_WRITABLE=no ENROOT_REMAP_ROOT=no ENROOT_MOUNT_HOME=no ENROOT_LOGIN_SHELL=no",
        "export ENROOT_RESTRICT_DEV=no NVIDIA_VISIBLE_DEVICES=void",
        'case "$gpus" in 0 | none) ;; *) [ ! -e /dev/nvidiactl ] || export NVIDIA_VISIBLE_DEVICES=all ;; esac',
        'mkdir -p "$place" "$tmp" && exec 9>"$place/.lock" && flock 9 || exit 255',
        # The learners of a node share one root file system, which they cannot write to.
        'if [ ! -e "$place/.made" ]; then (',
        # A file that remains from an import that failed would end the next one ("File already exists").
        'case "$image" in /*) ;; *) rm -f "$file" && enroot import -o "$file" "$image" && image=$file ;; esac &&',
        'enroot create -f -n job "$image" && rm -f "$file" &&',
        'printf \'%s\\n\' \'exec "$@"\' >"$place/.rc" && : >"$place/.made"',
        ') >"$place/.said" 2>&1 || { tail -n 3 "$place/.said"; exit 255; }; fi',
        "exec 9>&-",
        'set -- -e "NVIDIA_VISIBLE_DEVICES=$NVIDIA_VISIBLE_DEVICES" -m "$tmp:/tmp:none:x-create=auto,bind,rw" "$@"',
        'exec enroot start --rc "$place/.rc" "$@"',
    )
)
"""Script that bash runs on the node before the learner. Its process becomes enroot, and then the learner."""
_ENTER = f'set -a; . {ENVIRONMENT}; set +a; exec "$@"'


def enroot_argv(container: Container) -> tuple[str, ...]:
    """Return the whole command. Raises ValueError for a path, an image or a network level that enroot cannot use."""
    if container.network is not NetworkMode.HOST:
        raise ValueError("enroot containers always use the node's network")
    gpus = "none" if container.gpus is GpuLibraries.NONE and not container.devices else "{gpu_count}"
    argv = ["bash", "-c", literal(PREPARE), "ffdl-enroot", image_for_enroot(container.image)]
    argv += ["{scratch}", "{scratch}/learner-{learner_id}", gpus]
    for bind in (*container.binds, Bind("{env_file}", ENVIRONMENT, read_only=True)):
        argv += ["-m", mount_text(bind)]
    argv += ["job", "bash", "-c", literal(_ENTER), "ffdl-learner"]
    return (*argv, *(literal(part) for part in container.argv))


def mount_text(bind: Bind) -> str:
    """Return a value of ``--mount``."""
    for path in (bind.source, bind.target):
        if ":" in path or any(char.isspace() for char in path) or not path.startswith(("/", "{")):
            raise ValueError(f"enroot cannot mount {path!r}: the path has a colon or white space, or is not absolute")
    return f"{bind.source}:{bind.target}:none:x-create=auto,bind,{'ro' if bind.read_only else 'rw'}"


def image_for_enroot(image: str) -> str:
    """Return the name of an image in enroot's notation. Raises ValueError if enroot cannot open such images.

    Enroot before 4.1 takes the registry only if a # follows it.
    """
    scheme = "docker://"
    if image.startswith("/") and not image.endswith(".sif"):
        return image
    if not image.startswith(scheme):
        kind = "a SIF file" if image.endswith(".sif") else f"{image!r}"
        raise ValueError(
            f"enroot cannot open {kind}: name an image of a registry, or a .sqsh file by its absolute path"
        )
    registry, slash, rest = image[len(scheme) :].partition("/")
    is_host = slash and (any(char in registry for char in ".:") or registry == "localhost")
    return f"{scheme}{registry}#{rest}" if is_host else image
