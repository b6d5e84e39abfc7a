"""Find what would make jobs fail on this cluster: in slurm.conf, in the nodes' features, and on the nodes."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ffdl_batch.domain.data.mounts import Mounting
from ffdl_batch.domain.examination import Item, Verdict
from ffdl_batch.domain.number_text import counted
from ffdl_batch.domain.scheduler_errors import SchedulerMissing, SchedulerUnreachable
from ffdl_batch.host.fast_dataclass import dataclass
from ffdl_slurm.doctor.data_checks import data_items
from ffdl_slurm.doctor.node_checks import (
    KILL_S,
    OWN_MOUNTS,
    STEP_S,
    Node,
    answered,
    chosen,
    differences,
    is_away,
    is_explained,
    judge,
    judge_silence,
    names_of,
    not_examined,
    parse_pairs,
    step_argv,
)
from ffdl_slurm.gateways.command_runner import CommandResult, CommandTimeout, Runner
from ffdl_slurm.observing.parsers import Garbled
from ffdl_slurm.output_text import begin
from ffdl_slurm.planning.controller_delivery import staging_interpreter
from ffdl_slurm.settings import SlurmSettings, doubt_times

T = TypeVar("T")

_AT_ONCE = 16
_FRAGMENT = "slurm.conf.d/ffdl.conf of slurm-configs has it"
_KEY = re.compile(r"^(\w+)(?:\[\d+\])?[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_NODE_FORMAT = "%P|%p|%N|%f|%G|%T"
_STATE_FORMAT = "%T|%E"
_CHECKS_AT_S = (0.0, 1.0, 2.0)
"""Pauses before the state of a node is read whose step did not run."""
_TRIED = ("values", "vxlan", "wireguard", "filter", "acl", "ports", "hooks", "apptainer", "egress")


@dataclass(frozen=True, slots=True)
class _Look:
    """What is checked on nodes."""

    prolog: str
    """The nodes' prolog as slurm.conf names it."""
    epilogs: str
    """The directory of their epilogs."""
    staging: str
    """The interpreter of the staging program; "" if nodes see none."""


@dataclass(frozen=True, slots=True)
class Doctor:
    """Examines the cluster."""

    settings: SlurmSettings
    root: str
    """The tree of job directories."""
    run: Runner
    """Runs the commands of Slurm."""

    def examine(self, nodes: str, mounting: Mounting = Mounting.AUTO) -> list[Item]:
        """See :class:`ffdl_batch.ports.capabilities.Examines`."""
        if nodes not in ("", "all"):
            names_of(nodes)
        try:
            listed, odd = self._ask(parse_nodes, "sinfo", "--all", "-N", "--noheader", f"--format={_NODE_FORMAT}")
        except SchedulerMissing:
            raise
        except (SchedulerUnreachable, CommandTimeout) as error:
            return [Item("slurm", Verdict.WRONG, str(error)), *self._look_here([])]
        items = [Item("slurm", Verdict.OK)]
        if odd:
            text = f"{counted(len(odd), 'row')} of sinfo's cannot be read and is ignored: {begin(odd[0])!r}"
            items.append(Item("slurm", Verdict.NOTE, text))
        config: dict[str, str] = {}
        try:
            config = self._ask(parse_config, "scontrol", "show", "config")
        except (SchedulerUnreachable, CommandTimeout) as error:
            if isinstance(error, SchedulerMissing) and not isinstance(error.__cause__, PermissionError):
                raise
            items.append(Item("slurm.conf", Verdict.NOTE, f"not examined because it cannot be read: {error}"))
        else:
            items += self._look_at_config(config, listed)
        items += self._look_at_partitions(listed)
        items += self._look_here(listed)
        look = _Look(config.get("Prolog") or "Prolog", str(Path(config.get("Epilog", "")).parent), self._staging())
        return items + self._look_at_nodes(chosen(nodes, listed), look, mounting)

    def _staging(self) -> str:
        return staging_interpreter(self.root, self.settings.staging_python)

    def _ask(self, parse: Callable[[str], T], *argv: str) -> T:
        result = self.run(argv, self.settings.command_timeout_s)
        if result.returncode != 0:
            raise SchedulerUnreachable(f"{' '.join(argv[:3])} exited with status {result.returncode}: {result.message}")
        try:
            return parse(result.stdout)
        except Garbled as error:
            raise SchedulerUnreachable(f"the answer of {argv[0]} cannot be read: {error}") from error

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
        return Item(about, Verdict.OK, f"{levels} on {'its node' if len(nodes) == 1 else f'all {len(nodes)} nodes'}")

    # --------------------------------------------------------------------------------------------- this host

    def _look_here(self, nodes: Sequence[Node]) -> list[Item]:
        """Return the items of the capabilities file on a compute node. As root, write the file again first."""
        file, about = Path(self.settings.network_dir, "capabilities"), "this node"
        host = socket.gethostname().partition(".")[0]
        try:
            pairs = parse_pairs(file.read_text(encoding="utf-8"))
            if os.geteuid() == 0 and (check := _check_of(file, pairs)):
                self.run([check], float(STEP_S))
                pairs = parse_pairs(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if not any(node.name == host and self.settings.network_feature in node.features for node in nodes):
                return []
            text = f"there is no {file}: enable ffdl-network.service, see docs/network.md"
            return [Item(about, Verdict.WRONG, text)]
        return items_of(pairs, about)

    # ---------------------------------------------------------------------------------------------- the nodes

    def _look_at_nodes(self, nodes: Sequence[Node], look: _Look, mounting: Mounting) -> list[Item]:
        """Examine one node before the others: if a prolog fails, Slurm drains each node that gets a step."""
        replies: dict[str, dict[str, str]] = {}
        there = [node for node in nodes if not is_away(node)]
        first = next((node for node in there if node.state.lower() == "idle"), there[0] if there else None)
        items, drained = self._look_at_node(first, look, replies) if first else ([], False)

        def ask(node: Node) -> list[Item]:
            if node is first:
                return items
            if first and drained and not is_away(node):
                return [not_examined(node, f"node {first.name} was drained by its prolog", "that is mended")]
            return self._look_at_node(node, look, replies)[0]

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = [item for items in pool.map(ask, nodes) for item in items]
        answers = {node.name: replies[node.name] for node in nodes if node.name in replies}
        return [*data_items(answers, mounting, look.staging), *found, *differences(answers)]

    def _look_at_node(self, node: Node, look: _Look, replies: dict[str, dict[str, str]]) -> tuple[list[Item], bool]:
        """Return the items of a node, and whether Slurm drained it because its prolog failed for this step. Add what
        its step printed to `replies`."""
        if is_away(node):
            return [not_examined(node, self._now(node).standing)], False
        try:
            argv = step_argv(node, self.settings, self.root, look.epilogs, look.staging)
            result = self.run(argv, STEP_S + 3 * KILL_S)
        except (SchedulerUnreachable, CommandTimeout) as error:
            return [Item(f"node {node.name}", Verdict.WRONG, f"it was not asked: {error}")], False
        if answered(result):
            replies[node.name] = parse_pairs(result.stdout)
            return judge(node, result, self.settings, self.root), False
        node = self._afterwards(node, result)
        return [judge_silence(node, result, look.prolog)], node.failed_prolog

    def _afterwards(self, node: Node, result: CommandResult) -> Node:
        """Return the node's state after a step that did not run. srun may get the error of a prolog before slurmctld,
        which drains the node a moment later."""
        for pause_s in _CHECKS_AT_S:
            time.sleep(pause_s)
            node = self._now(node)
            if node.failed_prolog or is_explained(result):
                break
        return node

    def _now(self, node: Node) -> Node:
        """Return the node with its current state and Slurm's reason; unchanged if Slurm does not answer."""
        argv = ("sinfo", "--all", "-h", "-N", "-n", node.name, "-o", _STATE_FORMAT)
        try:
            result = self.run(argv, self.settings.command_timeout_s)
        except (SchedulerUnreachable, CommandTimeout):
            return node
        state, bar, reason = result.stdout.partition("\n")[0].strip().partition("|")
        if result.returncode != 0 or not state or not bar:
            return node
        return replace(node, state=state, reason="" if reason == "none" else reason)


# --------------------------------------------------------------------------------------------------- pure parts


def parse_config(text: str) -> dict[str, str]:
    """Parse ``scontrol show config``. Of several prologs (``Prolog[0] = ...``) the first counts. "(null)" and "none"
    are "". Raises Garbled."""
    found: dict[str, str] = {}
    for key, value in _KEY.findall(text):
        found.setdefault(key, "" if value in ("(null)", "none", "None") else value)
    if not found:
        raise Garbled(f"scontrol printed no configuration but {begin(text)!r}")
    return found


def parse_nodes(text: str) -> tuple[list[Node], list[str]]:
    """Read the output of sinfo with one node of one partition per line. Return the nodes, and the rows that cannot be
    read.

    Lines without a separator, which a site prints around the rows, are ignored. The partitions of a node begin with the
    one whose jobs preempt no others. That is the one of the lowest tier (PriorityTier), and the default one if several
    have that tier. Raises Garbled if no row can be read.
    """
    found: dict[str, Node] = {}
    ranks: dict[str, tuple[int, bool, str]] = {}
    odd: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        words = [word.strip() for word in line.split("|")]
        if len(words) != _NODE_FORMAT.count("|") + 1 or not words[1].isdecimal():
            odd += [line] if "|" in line else []
            continue
        partition, tier, name, features, gres, state = words
        plain = partition.rstrip("*")
        ranks[plain] = (int(tier), plain == partition, plain)
        known = found[name].partitions if name in found else ()
        own = frozenset(features.split(",")) - {"(null)", ""}
        found[name] = Node(name, (*known, plain), own, gres, state)
    if text.strip() and not found:
        raise Garbled(f"sinfo printed no readable rows; it printed {begin(odd[0] if odd else text)!r}")
    nodes = found.values()
    return [replace(node, partitions=tuple(sorted(node.partitions, key=ranks.__getitem__))) for node in nodes], odd


def wrong_for_networks(config: dict[str, str]) -> list[str]:
    """Return what slurm.conf lacks for networks of jobs."""
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
    """Return a remark on a plugin that may hide jobs' networks from them. Another file names the nodes that it is
    for."""
    keys = ("JobContainerType", "NamespaceType")
    found = [(key, config[key]) for key in keys if config.get(key, "").rpartition("/")[2] in ("tmpfs", "linux")]
    return [f"{key} is {plugin}: {OWN_MOUNTS}; --nodes tries it" for key, plugin in found]


def wrong_for_devices(config: dict[str, str]) -> list[str]:
    """Return what slurm.conf and cgroup.conf lack, so that a job could use GPUs that it was not given."""
    wrong = []
    if "task/cgroup" not in config.get("TaskPlugin", "").split(","):
        wrong.append(f"TaskPlugin has no task/cgroup: jobs may use GPUs that they were not given; {_FRAGMENT}")
    if config.get("ConstrainDevices", "yes") != "yes":
        wrong.append("cgroup.conf: ConstrainDevices must be yes: jobs may use GPUs that they were not given")
    return wrong


def items_of(pairs: dict[str, str], about: str) -> list[Item]:
    """Return an item for each check of the node's programs, with what they say to change."""
    items = []
    for name in _TRIED:
        if name not in pairs:
            continue
        why = pairs.get(f"{name}_problem", "")
        verdict = Verdict.NOTE if why.startswith("not offered") else Verdict.WRONG
        items.append(Item(f"{about}: {name}", Verdict.OK if pairs[name] == "yes" else verdict, why))
    return items


def _judge(about: str, wrong: Sequence[str]) -> Item:
    return Item(about, Verdict.WRONG, "; ".join(wrong)) if wrong else Item(about, Verdict.OK)


def _seconds(text: str) -> int | None:
    found = re.match(r"(\d+) sec", text)
    return int(found[1]) if found else None


def _check_of(file: Path, pairs: dict[str, str]) -> str:
    """Return the program that writes the file, if root owns it and the file; else ""."""
    check = Path(pairs.get("programs", ""), "check")
    try:
        owners = {part.stat().st_uid for part in (file, check, check.parent)}
        open_to_all = any(part.stat().st_mode & 0o022 for part in (check, check.parent))
    except OSError:
        return ""
    return str(check) if owners == {0} and not open_to_all and check.is_absolute() else ""
