"""What would make jobs fail on this cluster, found beforehand: in slurm.conf, in the nodes' features, on the nodes."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ffdl_batch.ports.examination import Item, Verdict
from ffdl_batch.ports.scheduler import InvalidRequest, SchedulerUnreachable
from ffdl_slurm.run import CommandResult, CommandTimeout, Runner
from ffdl_slurm.settings import SlurmSettings, doubt_times

STEP_S = 60
"""How long a node may take until its step has ended, the wait for a free core and the prolog included."""
_START_S, _KILL_S = 30, 5
_AT_ONCE = 16
_FRAGMENT = "slurm.conf.d/ffdl.conf of slurm-configs has it"
_OWN_MOUNTS = (
    "where Slurm gives jobs mounts of their own before the prolog runs, no learner can join; unset JobContainerType "
    "(NamespaceType since Slurm 25.11) of slurm.conf for these nodes, see docs/network.md"
)
_KEY = re.compile(r"^(\w+)(?:\[\d+\])?[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_TRIED = ("vxlan", "filter", "acl", "ports", "apptainer", "egress")
_LOOK = """\
job=$1/job-$SLURM_JOB_ID
echo asked=yes
[ ! -d "$job" ] || echo hook=yes
[ ! -e "$job/network" ] || echo made=yes
# A namespace (nsfs, in hexadecimal) where the facts say that one is; a job with mounts of its own sees an empty file.
net=$(sed -n 's/^netns=//p' "$job/network" 2>/dev/null)
[ "$(stat -f -c %t "$net" 2>/dev/null)" != 6e736673 ] || echo seen=yes
[ ! -e "$job/error" ] || echo "error=$(tr '\\n' ' ' <"$job/error")"
! command -v "$2" >/dev/null || echo runtime=yes
[ ! -w "$3" ] || echo scratch=yes
[ ! -d "$4" ] || echo tree=yes
cat "$1/capabilities" 2>/dev/null
:
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as sinfo has it."""

    name: str
    partitions: tuple[str, ...]
    features: frozenset[str]
    gres: str
    state: str


@dataclass(frozen=True, slots=True)
class Doctor:
    """Examines the cluster. `run` carries questions to Slurm; `root` is the tree of job directories."""

    settings: SlurmSettings
    root: str
    run: Runner

    def examine(self, nodes: str) -> list[Item]:
        """See :class:`ffdl_batch.ports.examination.Examines`."""
        try:
            config = parse_config(self._ask("scontrol", "show", "config"))
            listed = parse_nodes(self._ask("sinfo", "--all", "-N", "--noheader", "--format=%P|%N|%f|%G|%T"))
        except (SchedulerUnreachable, CommandTimeout) as error:
            return [Item("slurm", Verdict.WRONG, str(error)), *self._look_here([])]
        items = [Item("slurm", Verdict.OK), *self._look_at_config(config, listed), *self._look_at_partitions(listed)]
        items += self._look_here(listed)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for found in pool.map(self._look_at_node, _chosen(nodes, listed)):
                items += found
        return items

    def _ask(self, *argv: str) -> str:
        result = self.run(argv, self.settings.command_timeout_s)
        if result.returncode != 0:
            raise SchedulerUnreachable(f"{' '.join(argv[:3])} ended with {result.returncode}: {result.said}")
        return result.stdout

    # ------------------------------------------------------------------------------------------- slurm.conf

    def _look_at_config(self, config: dict[str, str], nodes: Sequence[Node]) -> list[Item]:
        items = []
        if any(self.settings.network_feature in node.features for node in nodes):
            items.append(_judge("slurm.conf: networks", wrong_for_networks(config)))
            items += [Item("slurm.conf: networks", Verdict.NOTE, text) for text in doubt_mounts(config)]
        if any("gpu" in node.gres for node in nodes):
            items.append(_judge("slurm.conf: GPUs", wrong_for_devices(config)))
        times = (_seconds(config.get(key, "")) for key in ("SlurmdTimeout", "KillWait"))
        items += [Item("slurm.conf: times", Verdict.NOTE, text) for text in doubt_times(self.settings, *times)]
        return items

    def _look_at_partitions(self, nodes: Sequence[Node]) -> list[Item]:
        names = sorted({name for node in nodes for name in node.partitions})  # sinfo has no order of its own for them
        return [self._look_at_partition(name, [node for node in nodes if name in node.partitions]) for name in names]

    def _look_at_partition(self, partition: str, nodes: Sequence[Node]) -> Item:
        feature, about = self.settings.network_feature, f"partition {partition}"
        if not feature:
            return Item(about, Verdict.NOTE, "network_feature of [backend.slurm] is empty: no network level job")
        with_it = [node.name for node in nodes if feature in node.features]
        if not with_it:
            return Item(about, Verdict.NOTE, f"no node has the feature {feature!r}: no network level job here")
        if len(with_it) < len(nodes):
            without = ",".join(node.name for node in nodes if node.name not in with_it)
            text = f"{without} has not the feature {feature!r}: network level job needs --constraint={feature} here"
            return Item(about, Verdict.NOTE, text)
        egress = self.settings.egress_feature
        ways_out = all(egress in node.features for node in nodes)
        levels = "network levels job and egress" if ways_out else "network level job"
        return Item(about, Verdict.OK, f"{levels} on all {len(nodes)} nodes")

    # --------------------------------------------------------------------------------------------- this host

    def _look_here(self, nodes: Sequence[Node]) -> list[Item]:
        """On a compute node, what its file says; root has it written anew."""
        file, about = Path(self.settings.network_dir, "capabilities"), "this node"
        host = socket.gethostname().partition(".")[0]
        try:
            told = parse_pairs(file.read_text(encoding="utf-8"))
            if os.geteuid() == 0 and (check := _check_of(file, told)):
                self.run([check], float(STEP_S))
                told = parse_pairs(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if not any(node.name == host and self.settings.network_feature in node.features for node in nodes):
                return []
            text = f"there is no {file}: enable ffdl-network.service, see docs/network.md"
            return [Item(about, Verdict.WRONG, text)]
        return items_of(told, about)

    # ---------------------------------------------------------------------------------------------- the nodes

    def _look_at_node(self, node: Node) -> list[Item]:
        about = f"node {node.name}"
        try:
            result = self.run(self._step_argv(node), STEP_S + 3 * _KILL_S)
        except (SchedulerUnreachable, CommandTimeout) as error:
            return [Item(about, Verdict.WRONG, f"it was not asked: {error}")]
        told = parse_pairs(result.stdout)
        if "asked" not in told:
            return [Item(about, Verdict.WRONG, f"no answer: {_why_silent(result)}; Slurm has it as {node.state}")]
        return [Item(about, Verdict.WRONG, text) for text in self._wrong_on(node, told)] or [
            Item(about, Verdict.OK, self._note_on(node, told))
        ]

    def _step_argv(self, node: Node) -> list[str]:
        settings = self.settings
        partition = settings.partition if settings.partition in node.partitions else node.partitions[0]
        argv = ["timeout", "-k", str(_KILL_S), str(STEP_S), "srun", "--quiet", "--nodes=1", "--ntasks=1"]
        argv += [f"--nodelist={node.name}", f"--partition={partition}", "--time=1", "--mem=64"]
        argv += [f"--immediate={_START_S}", "--job-name=ffdl-doctor", f"--comment={settings.job_mark}job/1"]
        argv += [f"--account={settings.account}"] if settings.account else []
        argv += [f"--qos={settings.qos}"] if settings.qos else []
        places = (settings.network_dir, settings.apptainer, settings.scratch_base, self.root)
        return [*argv, "/bin/sh", "-c", _LOOK, "sh", *places]

    def _wrong_on(self, node: Node, told: dict[str, str]) -> list[str]:
        settings, wrong = self.settings, []
        if settings.network_feature in node.features and "made" not in told:
            wrong.append(f"it has the feature {settings.network_feature!r}, but {_why_no_network(told)}")
        if "made" in told and "seen" not in told:
            wrong.append(f"its prolog made a network that jobs do not see: {_OWN_MOUNTS}")
        if settings.egress_feature in node.features and told.get("egress") != "yes":
            why = told.get("egress_problem") or told.get("problem") or "its capabilities do not say so"
            wrong.append(f"it has the feature {settings.egress_feature!r}, but level egress is not there: {why}")
        if "runtime" not in told:
            wrong.append(f"{settings.apptainer} is not on the PATH there")
        if "scratch" not in told:
            wrong.append(f"scratch_base of [backend.slurm], {settings.scratch_base}, cannot be written there")
        if "tree" not in told and Path(self.root).is_dir():
            wrong.append(
                f"jobs_dir of the configuration, {self.root}, is not there: it must be on a shared file system"
            )
        return wrong

    def _note_on(self, node: Node, told: dict[str, str]) -> str:
        feature = self.settings.network_feature
        if not feature or feature in node.features or "made" not in told:
            return ""
        return f"it makes networks of jobs; without the feature {feature!r} no job asks for one"


# --------------------------------------------------------------------------------------------------- pure parts


def parse_config(text: str) -> dict[str, str]:
    """``scontrol show config``; of several prologs the first (``Prolog[0] = ...``). "(null)" and "none" are ""."""
    found: dict[str, str] = {}
    for key, value in _KEY.findall(text):
        found.setdefault(key, "" if value in ("(null)", "none", "None") else value)
    return found


def parse_nodes(text: str) -> list[Node]:
    """One node of one partition a line."""
    found: dict[str, Node] = {}
    for line in text.splitlines():
        partition, name, features, gres, state = (word.strip() for word in line.split("|"))
        known = found[name].partitions if name in found else ()
        words = frozenset(features.split(",")) - {"(null)", ""}
        found[name] = Node(name, (*known, partition.rstrip("*")), words, gres, state)
    return list(found.values())


def parse_pairs(text: str) -> dict[str, str]:
    """Lines of ``name=value``; others are left out."""
    parts = (line.partition("=") for line in text.splitlines())
    return {name: value.strip() for name, equals, value in parts if equals}


def wrong_for_networks(config: dict[str, str]) -> list[str]:
    """What slurm.conf lacks for networks of jobs."""
    wrong = [
        f"{key} is not set, and nodes have the feature for networks of jobs: {_FRAGMENT}"
        for key in ("Prolog", "Epilog")
        if not config.get(key)
    ]
    flags = config.get("PrologFlags", "").split(",")
    if "Alloc" not in flags:
        listed = ",".join(flags) or "empty"
        wrong.append(f"PrologFlags is {listed}, without Alloc: other nodes' prologs run after a job began; {_FRAGMENT}")
    return wrong


def doubt_mounts(config: dict[str, str]) -> list[str]:
    """A plugin that may hide jobs' networks from them; which nodes it is for stands in a file of its own."""
    keys = ("JobContainerType", "NamespaceType")
    found = [(key, config[key]) for key in keys if config.get(key, "").rpartition("/")[2] in ("tmpfs", "linux")]
    return [f"{key} is {plugin}: {_OWN_MOUNTS}; --nodes tries it" for key, plugin in found]


def wrong_for_devices(config: dict[str, str]) -> list[str]:
    """What slurm.conf and cgroup.conf lack, so that a job could use GPUs that it was not given."""
    wrong = []
    if "task/cgroup" not in config.get("TaskPlugin", "").split(","):
        wrong.append(f"TaskPlugin has no task/cgroup: jobs may use GPUs that they were not given; {_FRAGMENT}")
    if config.get("ConstrainDevices", "yes") != "yes":
        wrong.append("cgroup.conf: ConstrainDevices must be yes: jobs may use GPUs that they were not given")
    return wrong


def items_of(told: dict[str, str], about: str) -> list[Item]:
    """An item for each thing that the node's programs tried, with their word on what to change."""
    items = []
    for name in _TRIED:
        if name not in told:
            continue
        why = told.get(f"{name}_problem", "")
        verdict = Verdict.NOTE if why.startswith("not offered") else Verdict.WRONG
        items.append(Item(f"{about}: {name}", Verdict.OK if told[name] == "yes" else verdict, why))
    return items


def _chosen(nodes: str, listed: Sequence[Node]) -> list[Node]:
    if nodes in ("", "all"):
        return list(listed) if nodes else []
    by_name = {node.name: node for node in listed}
    names = [name.strip() for name in nodes.split(",") if name.strip()]
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise InvalidRequest(f"Slurm has no node {', '.join(unknown)}; it has {', '.join(by_name)}")
    return [by_name[name] for name in names]


def _judge(about: str, wrong: Sequence[str]) -> Item:
    return Item(about, Verdict.WRONG, "; ".join(wrong)) if wrong else Item(about, Verdict.OK)


def _seconds(text: str) -> int | None:
    found = re.match(r"(\d+) sec", text)
    return int(found[1]) if found else None


def _why_silent(result: CommandResult) -> str:
    if result.returncode == 124:  # of timeout(1)
        return f"its step did not end within {STEP_S} s"
    return result.said


def _why_no_network(told: dict[str, str]) -> str:
    if told.get("error"):
        return told["error"]
    if "hook" not in told:
        return (
            "its prolog made nothing: prolog.d/50-ffdl did not run there, or FFDL_LIBEXEC/prolog is not installed; see "
            "docs/network.md"
        )
    return "its prolog made no network and left no word"


def _check_of(file: Path, told: dict[str, str]) -> str:
    """The program that writes the file anew, if it is root's like the file."""
    check = Path(told.get("programs", ""), "check")
    try:
        owners = {part.stat().st_uid for part in (file, check, check.parent)}
        open_to_all = any(part.stat().st_mode & 0o022 for part in (check, check.parent))
    except OSError:
        return ""
    return str(check) if owners == {0} and not open_to_all and check.is_absolute() else ""
