"""Plans how a learner runs in the container of a pod: the shim, its first process, and what the controller starts.

The shim has only a POSIX shell (dash, BusyBox), and uses only its builtins. The learner's own command needs bash, as
everywhere (:data:`ffdl_batch.runtimes.learner_contract.WRAPPER`).
"""

from __future__ import annotations

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.launch.placeholders import literal
from ffdl_batch.domain.launch.pod_protocol import (
    BEGUN,
    BELL,
    DONE,
    ENDED,
    GO,
    HOSTS,
    INDEX,
    OUTPUT,
    SEAT_DIR,
    SHIM,
    TERMINATING,
)
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_batch.runtimes.learner_contract import SHELL, Layout

WORKING_DIR = "/job"
WORK, POD = "work", "pod"

SHIM_TEXT = f"""\
# The first process of a learner's container: starts the learner as the pod's controller says (file {GO}), records how
# it ended ({ENDED}), and ends when all is stored ({DONE}). It needs only a POSIX shell.
ffdl_seat=${{1:-{SEAT_DIR}}}
ffdl_ran=

ffdl_count_kills() {{
  ffdl_kills=-1
  for ffdl_word in memory.events memory/memory.oom_control; do
    [ -r "/sys/fs/cgroup/$ffdl_word" ] || continue
    while read -r ffdl_name ffdl_value; do
      [ "$ffdl_name" = oom_kill ] && ffdl_kills=$ffdl_value
    done <"/sys/fs/cgroup/$ffdl_word"
    break
  done
}}

# The end of this container is asked for: a checkpoint first. (The learner gets its own signal from the controller.)
trap 'ffdl_stopping=1; : >"$ffdl_seat/{TERMINATING}"' TERM INT
exec 4<>"$ffdl_seat/{BELL}"
printf '%s\\n' "$$" >"$ffdl_seat/{BEGUN}"
while :; do
  if [ -e "$ffdl_seat/{DONE}" ]; then
    read -r ffdl_word <"$ffdl_seat/{DONE}"
    # In a pod that is being deleted, it is kubelet that ends this container: one that ends by itself at the moment at
    # which kubelet, its hook being over, would end it makes kubelet 1.36 wait for the grace of the whole pod.
    ffdl_stopping= ffdl_left=5
    while [ -e "$ffdl_seat/{TERMINATING}" ] && [ -z "$ffdl_stopping" ] && [ "$ffdl_left" -gt 0 ]; do
      ffdl_left=$((ffdl_left - 1))
      sleep 1
    done
    exit "$ffdl_word"
  fi
  if [ -e "$ffdl_seat/{GO}" ] && read -r ffdl_word ffdl_start <"$ffdl_seat/{GO}" && [ "$ffdl_start" != "$ffdl_ran" ]
  then
    ffdl_ran=$ffdl_start
    ffdl_count_kills
    ffdl_before=$ffdl_kills
    # Held open: a learner does not die because the reader of its output was started again.
    exec 3<>"$ffdl_seat/{OUTPUT}"
    (exec 3>&- 4>&-; . "$ffdl_seat/{GO}") </dev/null >"$ffdl_seat/{OUTPUT}" 2>&1
    ffdl_status=$?
    exec 3>&-
    ffdl_count_kills
    printf '%s %s %s %s\\n' "$ffdl_ran" "$ffdl_status" "$ffdl_before" "$ffdl_kills" >"$ffdl_seat/{ENDED}"
    continue
  fi
  read -r ffdl_word <&4 || sleep 1
done
"""
"""What a container of a learner runs. A constant: nothing of a user's is in it."""

PRE_STOP_TEXT = (
    f': >"$1/{TERMINATING}"; read -r pid <"$1/{BEGUN}"; '
    f'while [ ! -e "$1/{DONE}" ] && kill -0 "$pid" 2>/dev/null; do sleep 1 || exit 0; done'
)
"""Runs before the learner's container is asked to end: the controller gets the request, and the time to write a
checkpoint and to store it. When that is done the hook ends, and kubelet asks the shim, which waits for it, to end."""


@dataclass(frozen=True, slots=True)
class PodMount:
    """What the learner's container sees: `sub_path` of a volume of the pod, at `target`. ``work`` begins at the job's
    directory, ``pod`` at the pod's own; "" is a directory of the cluster's that the manifest names, and `sub_path` its
    absolute path. `per_pod`: `sub_path` has ``$(JOB_COMPLETION_INDEX)`` in it, and is a ``subPathExpr``."""

    volume: str
    sub_path: str
    target: str
    read_only: bool = False
    per_pod: bool = False


def shim_argv(seat: str = SEAT_DIR) -> tuple[str, ...]:
    """The command of the learner's container."""
    return ("/bin/sh", f"{seat}/{SHIM}", seat)


def pre_stop_argv(seat: str = SEAT_DIR) -> tuple[str, ...]:
    """The hook of the learner's container."""
    return ("/bin/sh", "-c", PRE_STOP_TEXT, "ffdl-pre-stop", seat)


def stand_in_argv(controller: tuple[str, ...], shell: tuple[str, ...] = SHELL) -> tuple[str, ...]:
    """Return what the node controller starts in the learner's place. `controller` is the argv that starts a controller,
    with placeholders; the shell at the end is the one of every learner."""
    options = ("stand-in", "--pod", "{pod}", "--env-file", "{env_file}", "--cwd", WORKING_DIR)
    return (*controller, *options, "--", *(literal(part) for part in shell))


def learner_mounts(layout: Layout, job_dir: str, attempt: AttemptDir, learners: int, named: bool) -> list[PodMount]:
    """Return the mounts that give a container this layout, outer ones first. `named`: learners have names that
    resolve."""
    found = [_mount(bind.source, bind.target, bind.read_only, job_dir, attempt, learners) for bind in layout.binds]
    if named:
        found.append(PodMount(POD, HOSTS, "/etc/hosts", read_only=True))
    return sorted(found, key=lambda mount: mount.target.count("/"))


def own_logs(index: str) -> str:
    """Return the link to the log directory of the learner of pod `index`, which each pod makes in an attempt's
    directory."""
    return f"logs/pod-{index}"


def _mount(source: str, target: str, read_only: bool, job_dir: str, attempt: AttemptDir, learners: int) -> PodMount:
    plain, place = _plain(source), _plain(target)
    base = job_dir.rstrip("/") + "/"
    if not plain.startswith(base):
        return PodMount("", plain, place, read_only)
    below = plain[len(base) :]
    if "{learner_id}" not in plain:
        return PodMount(WORK, below, place, read_only)
    if learners == 1:
        return PodMount(WORK, below.replace("{learner_id}", "1"), place, read_only)
    above = attempt.path[len(base) :]
    return PodMount(WORK, f"{above}/{own_logs(f'$({INDEX})')}", place, read_only, per_pod=True)


def _plain(text: str) -> str:
    """Return the text without the doubling of braces."""
    return text.replace("{{", "{").replace("}}", "}")
