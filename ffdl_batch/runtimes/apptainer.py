"""The argv that runs a learner in an Apptainer (or Singularity) image.

Facts are from Apptainer's source (1.4, 1.5): ``pkg/runtime/engine/apptainer/config/mount.go`` reads ``--mount``
as CSV; ``internal/pkg/runtime/engine/apptainer/process_linux.go`` evaluates the values of variables with a shell
unless ``--no-eval`` is given, so it always is here. ``--hostname`` makes a UTS namespace, which needs no privilege
beside the user namespace (``internal/pkg/runtime/launch/launcher_linux.go``; where a site has ``allow uts ns = no`` the
name stays the node's). A bind over /etc/hosts is made after Apptainer's own, so it counts
(``internal/pkg/util/fs/mount/mount_linux.go``).
"""

from __future__ import annotations

from enum import StrEnum

from ffdl_batch.domain.launch.devices import DEVICE_OPTIONS
from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.learner_contract import SHELL, Bind


class GpuLibraries(StrEnum):
    """Which vendor's driver libraries are bound into the image."""

    NONE = ""
    NVIDIA = "--nv"
    AMD = "--rocm"


class NetworkMode(StrEnum):
    """How the container gets its network."""

    HOST = "host"
    LOOPBACK = "loopback"
    JOIN = "join"
    """Join the namespace that the site made for the job; its path is the placeholder ``{netns}``."""


@dataclass(frozen=True, slots=True)
class Container:
    """One learner's container. All texts may hold placeholders of the launch file."""

    image: str
    binds: tuple[Bind, ...] = ()
    network: NetworkMode = NetworkMode.LOOPBACK
    gpus: GpuLibraries = GpuLibraries.NONE
    devices: bool = False
    """Whether the node adds the options for the learner's devices."""
    program: str = "apptainer"
    working_dir: str = "/job"
    hostname: str = ""
    """"" = the node's."""
    argv: tuple[str, ...] = SHELL


def apptainer_argv(container: Container) -> tuple[str, ...]:
    """Return the whole command. Raises ValueError for a path or an image that it cannot express.

    ``{scratch}`` becomes the container's /tmp and /var/tmp (else they are a few MiB of memory). ``--containall`` also
    gives it its own /dev/shm, process and IPC namespaces, and an empty environment except for the file's.
    """
    image = _plain(container.image, "image")
    if image.startswith("-"):
        raise ValueError(f"the image {image!r} begins with a dash; give an absolute path or a URI")
    argv = [container.program, "-q", "exec", "--containall", "--no-home", "--no-eval"]
    argv += ["--workdir", "{scratch}/learner-{learner_id}", "--env-file", "{env_file}"]
    if container.network is NetworkMode.LOOPBACK:
        argv += ["--net", "--network", "none"]
    elif container.network is NetworkMode.JOIN:
        # Not together with --net: Apptainer cannot join a namespace and make one.
        argv += ["--netns-path", "{netns}"]
    if container.hostname:
        argv += ["--hostname", container.hostname]
    if container.gpus is not GpuLibraries.NONE:
        argv.append(container.gpus.value)
    if container.devices:
        argv.append(DEVICE_OPTIONS)
    for bind in container.binds:
        argv += ["--mount", mount_text(bind)]
    argv += ["--pwd", _absolute(container.working_dir, "working directory"), image]
    # The launch file's placeholders are braces, and the shell text has braces of its own.
    return (*argv, *(literal(part) for part in container.argv))


def mount_text(bind: Bind) -> str:
    """A value of ``--mount``: CSV fields, quoted where a path holds a comma or a quote."""
    fields = [
        "type=bind",
        f"source={_absolute(bind.source, 'source')}",
        f"destination={_absolute(bind.target, 'target')}",
    ]
    if bind.read_only:
        fields.append("ro")
    return ",".join(_csv(text) for text in fields)


def _csv(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"') else text


def _absolute(path: str, what: str) -> str:
    if not path.startswith(("/", "{")):
        raise ValueError(f"the bind's {what} {path!r} is not an absolute path")
    return _plain(path, what)


def _plain(text: str, what: str) -> str:
    if not text or any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ValueError(f"the {what} {text!r} is empty or contains a control character, which Apptainer cannot take")
    return text
