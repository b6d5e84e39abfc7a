"""Examine one node for ``ffdl-admin doctor --nodes`` by a short job, and judge its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ffdl_batch.domain.examination import Item, Verdict
from ffdl_batch.domain.scheduler_errors import InvalidRequest
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.doctor.data_checks import LOOK
from ffdl_slurm.doctor.image_checks import CLOSED, IMAGE_LOOK, NO_IMAGES, SLOW_IMAGES, UNPACKED
from ffdl_slurm.gateways.command_runner import CommandResult
from ffdl_slurm.hostlist import expand
from ffdl_slurm.output_text import few
from ffdl_slurm.settings import ContainerRuntime, SlurmSettings

STEP_S = 60
"""Time limit of a node's step, with the wait for a free core and the prolog."""
KILL_S = 5
_START_S, _MEMORY_MIB = 30, 128
_TIMED_OUT = 124  # of timeout(1)
OWN_MOUNTS = (
    "where Slurm gives jobs mounts of their own before the prolog runs, no learner can join; unset JobContainerType "
    "(NamespaceType since Slurm 25.11) of slurm.conf for these nodes, see docs/network.md"
)
_AWAY = re.compile(r"down|drain|drng|fail|inval|unk|future|reboot|power|.*[*]")
"""Beginnings of sinfo's states of nodes that take no job; `*`: the node does not respond."""
_NOT_NOW = re.compile(r"busy|not available|immediate|timed out", re.IGNORECASE)
"""Messages of srun for an allocation that did not come in time (slurm_errno.h), but not for a wrong request."""
_FAILED_PROLOG = re.compile(r"\bprolog\b.*(error|fail)", re.IGNORECASE)
"""Slurm's reason for a node that it drained for it."""
_LOOK = (
    f"""\
data_look() {{
{LOOK}}}
image_look() {{
{IMAGE_LOOK}}}
job=$1/job-$SLURM_JOB_ID
echo asked=yes
data_look "$5" "$6"
"""
    + """\
[ ! -d "$job" ] || echo hook=yes
[ ! -e "$job/network" ] || echo made=yes
# A namespace (nsfs, in hexadecimal) where the facts say that one is; a job with mounts of its own sees an empty file.
net=$(sed -n 's/^netns=//p' "$job/network" 2>/dev/null)
[ "$(stat -f -c %t "$net" 2>/dev/null)" != 6e736673 ] || echo seen=yes
[ ! -e "$job/error" ] || echo "error=$(tr '\\n' ' ' <"$job/error")"
[ ! -w "$3" ] || echo scratch=yes
[ ! -d "$4" ] || echo tree=yes
cat "$1/capabilities" 2>/dev/null
command -v "$2" >/dev/null || exit 0
echo runtime=yes
[ "$2" != enroot ] || exit 0
image_look "$2"
# Level none is Apptainer's: an empty container that has the node's programs, without and with a network of its own.
own=$(readlink /proc/self/ns/net)
place=$(mktemp -d /tmp/ffdl-doctor.XXXXXX 2>&1) || { echo "untried=$place"; exit 0; }
for name in bin dev etc home lib lib64 proc root sys tmp usr var; do
    said=$(mkdir "$place/$name" 2>&1) || { echo "untried=$said"; rm -rf "$place"; exit 0; }
done
binds=
for name in bin lib lib64 usr; do [ ! -d "/$name" ] || binds="$binds --bind /$name:/$name:ro"; done
contained() {
    # shellcheck disable=SC2086
    timeout -k 2 10 "$runtime" -q exec --containall --no-home "$@" $binds "$place" \
        /bin/sh -c 'echo in=$(readlink /proc/self/ns/net)' 2>&1
}
runtime=$2
said=$(contained)
ended=$?
case "$said" in
    *in=net:*)
        echo contained=yes
        said=$(contained --net --network none)
        ended=$?
        case "$said" in
            *"in=$own"*) said='the container is in the network of the node' ;;
            *in=net:*) echo none=yes ;;
        esac
        ;;
    *) case $ended in 124 | 137) echo "untried=its container did not end within 10 s" ;; esac ;;
esac
echo "ended=$ended"
echo "said=$(printf %s "$said" | tail -n 1)"
rm -rf "$place"
"""
)


@dataclass(frozen=True, slots=True)
class Node:
    """A node as sinfo lists it."""

    name: str
    partitions: tuple[str, ...]
    """The step runs in the first one."""
    features: frozenset[str]
    gres: str
    state: str
    reason: str = ""

    @property
    def standing(self) -> str:
        """The node's state and the reason, as a part of a sentence."""
        return f"Slurm has it as {self.state}{': ' if self.reason else ''}{self.reason}"

    @property
    def failed_prolog(self) -> bool:
        """Whether Slurm drained it because its prolog failed."""
        return _FAILED_PROLOG.search(self.reason) is not None


def chosen(nodes: str, listed: Sequence[Node]) -> list[Node]:
    """Return the nodes that a list names, in Slurm's order: "all", "" for none, or what :func:`names_of` reads. Raises
    InvalidRequest if Slurm has no such node."""
    if nodes in ("", "all"):
        return list(listed) if nodes else []
    names = names_of(nodes)
    known = [node.name for node in listed]
    unknown = sorted(names - set(known))
    if unknown:
        raise InvalidRequest(f"Slurm has no node {few(unknown)}; it has {few(known)}")
    return [node for node in listed if node.name in names]


def names_of(nodes: str) -> frozenset[str]:
    """Return the names of a node list such as ``n[1-8],m1``. Raises InvalidRequest."""
    names = expand(re.sub(r"\s*,\s*", ",", nodes.strip()))
    if names is None:
        raise InvalidRequest(
            f"--nodes is {nodes!r}, which is not a list of nodes: give names as n1,n2 or n[1-8,12], or all"
        )
    return names


def step_argv(node: Node, settings: SlurmSettings, root: str, epilogs: str = "", staging: str = "") -> list[str]:
    """Return the argv of the job that asks for a network and prints what it finds, in the settings' partition if the
    node is in it. `epilogs` is the directory of slurm.conf's Epilog, `staging` the interpreter of the staging
    program."""
    partition = settings.partition if settings.partition in node.partitions else node.partitions[0]
    argv = ["timeout", "-k", str(KILL_S), str(STEP_S), "srun", "--quiet", "--nodes=1", "--ntasks=1"]
    argv += [f"--nodelist={node.name}", f"--partition={partition}", "--time=1", f"--mem={_MEMORY_MIB}"]
    argv += [f"--immediate={_START_S}", "--job-name=ffdl-doctor", f"--comment={settings.job_mark}job/1"]
    argv += [f"--account={settings.account}"] if settings.account else []
    argv += [f"--qos={settings.qos}"] if settings.qos else []
    places = (settings.network_dir, settings.container_program, settings.scratch_base, root, epilogs, staging)
    return [*argv, "/bin/sh", "-c", _LOOK, "sh", *places]


def is_away(node: Node) -> bool:
    """Return whether the node takes no jobs now."""
    return _AWAY.match(node.state.lower()) is not None


def not_examined(node: Node, why: str, when: str = "it takes jobs") -> Item:
    """Return the item of a node that could not be examined."""
    text = f"not examined: {why}; run again with --nodes={node.name} when {when}"
    return Item(f"node {node.name}", Verdict.NOTE, text, examined=False)


def answered(result: CommandResult) -> bool:
    """Return whether the node's step ran."""
    return "asked" in parse_pairs(result.stdout)


def judge(node: Node, result: CommandResult, settings: SlurmSettings, root: str) -> list[Item]:
    """Return the items of what the node's step printed."""
    about, pairs = f"node {node.name}", parse_pairs(result.stdout)
    wrong = _wrong_on(node, pairs, settings, root)
    items = [Item(about, Verdict.WRONG, text) for text in wrong]
    if pairs.get("images") == UNPACKED:
        items.append(Item(about, Verdict.NOTE, f"{settings.apptainer} {SLOW_IMAGES}"))
    if "untried" in pairs:
        items.append(Item(about, Verdict.NOTE, f"level none was not tried: {pairs['untried']}"))
    return items or [Item(about, Verdict.OK, _note_on(node, pairs, settings))]


_ALIKE = {
    "mechanism": "NETWORK_MECHANISM",
    "prefix": "NETWORK_PREFIX",
    "secret": "the secret in the file NETWORK_SECRET (here its fingerprint)",
}
"""Values that must be equal on all nodes of a job, by their names in a node's capabilities."""


def differences(answers: Mapping[str, Mapping[str, str]]) -> list[Item]:
    """Return the values that differ between nodes, so that learners on them would wait for each other. `answers` is
    what each node printed."""
    items = []
    for key, value in _ALIKE.items():
        having: dict[str, list[str]] = {}
        for node, pairs in answers.items():
            if pairs.get(key):
                having.setdefault(pairs[key], []).append(node)
        if len(having) > 1:
            who = "; ".join(f"{text}: {few(nodes)}" for text, nodes in having.items())
            text = f"{value} is not the same on all nodes, so learners of one job would not reach each other ({who})"
            items.append(Item("networks of jobs", Verdict.WRONG, text))
    return items


def parse_pairs(text: str) -> dict[str, str]:
    """Parse lines of ``name=value``, and ignore others."""
    parts = (line.partition("=") for line in text.splitlines())
    return {name: value.strip() for name, equals, value in parts if equals}


def is_explained(result: CommandResult) -> bool:
    """Return whether the step did not run because there was no free core, or no time; thus not because of a prolog."""
    return result.returncode == _TIMED_OUT or _NOT_NOW.search(result.text) is not None


def judge_silence(node: Node, result: CommandResult, prolog: str) -> Item:
    """Return why the node's step did not run. `node` has the state after it; `prolog` is that of slurm.conf."""
    about = f"node {node.name}"
    if node.failed_prolog:
        text = (
            f"Slurm drained it because its prolog failed ({node.reason}): {prolog} of slurm.conf is empty there, or "
            "has a file that cannot be executed or failed; put 00-keep and 50-ffdl of slurm-configs back, mode 755, "
            f"then run: scontrol update NodeName={node.name} State=RESUME"
        )
        return Item(about, Verdict.WRONG, text)
    if result.returncode == _TIMED_OUT:
        return Item(about, Verdict.WRONG, f"no answer: its step did not end within {STEP_S} s; {node.standing}")
    if _NOT_NOW.search(result.text):
        return not_examined(node, f"{result.message}; {node.standing}")
    return Item(about, Verdict.WRONG, f"no answer: {result.message}; {node.standing}")


def _wrong_on(node: Node, pairs: dict[str, str], settings: SlurmSettings, root: str) -> list[str]:
    wrong = []
    if settings.network_feature in node.features and "made" not in pairs:
        wrong.append(f"it has the feature {settings.network_feature!r}, but {_why_no_network(pairs)}")
    if "made" in pairs and "seen" not in pairs:
        wrong.append(f"its prolog made a network that jobs do not see: {OWN_MOUNTS}")
    if settings.egress_feature in node.features and pairs.get("egress") != "yes":
        why = pairs.get("egress_problem") or pairs.get("problem") or "its capabilities do not say so"
        wrong.append(f"it has the feature {settings.egress_feature!r}, but level egress is not there: {why}")
    if "runtime" not in pairs:
        wrong.append(f"{settings.container_program} is not on the PATH there")
    if pairs.get("images") == CLOSED:
        wrong.append(f"{settings.apptainer} {NO_IMAGES}")
    if settings.runtime is ContainerRuntime.PYXIS:
        pairs = {**pairs, "contained": "", "none": ""}  # only Apptainer's containers are tried
    why = pairs.get("said") or f"it exited with status {pairs.get('ended', '?')} and printed nothing"
    if "runtime" in pairs and not {"contained", "untried"} & pairs.keys():
        wrong.append(f"{settings.apptainer} started no empty container there: {why}")
    if "contained" in pairs and "none" not in pairs:
        wrong.append(f"{settings.apptainer} --net --network none, which level none needs, failed there: {why}")
    if "scratch" not in pairs:
        wrong.append(f"scratch_base of [backend.slurm], {settings.scratch_base}, cannot be written there")
    if "tree" not in pairs and Path(root).is_dir():
        wrong.append(f"jobs_dir of the configuration, {root}, is not there: it must be on a shared file system")
    return wrong


def _note_on(node: Node, pairs: dict[str, str], settings: SlurmSettings) -> str:
    feature = settings.network_feature
    if not feature or feature in node.features or "made" not in pairs:
        return ""
    return f"it makes networks of jobs; without the feature {feature!r} no job asks for one"


def _why_no_network(pairs: dict[str, str]) -> str:
    if pairs.get("error"):
        return pairs["error"]
    if "hook" not in pairs:
        return (
            "its prolog made nothing: prolog.d/50-ffdl did not run there, or FFDL_LIBEXEC/prolog is not installed; see "
            "docs/network.md"
        )
    return "its prolog made no network and left no message"
