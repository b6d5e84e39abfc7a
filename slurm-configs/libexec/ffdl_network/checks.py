"""Test what this node can do, and write the file that reports it to the platform."""

from __future__ import annotations

import base64
import contextlib
import os
import time
from pathlib import Path
from typing import Callable, NamedTuple, Sequence

from . import apptainer, egress, forwarding, secret, slots, tunnel, wireguard
from .commands import Trouble, run
from .files import publish
from .settings import Settings, WrongValues

NOT_OFFERED = "not offered: NETWORK_EGRESS_TO of values.env is empty"
_STALE_AFTER_S = 3600.0


class Item(NamedTuple):
    """One requirement. `wrong` is the fault and its cure; "" if there is none."""

    name: str
    wrong: str


class State(NamedTuple):
    """The requirements of network level `job`, and that of level `egress`; None: the site does not offer `egress`."""

    items: tuple[Item, ...]
    egress: Item | None

    @property
    def wrong(self) -> list[str]:
        """The faults of level `job`."""
        return [item.wrong for item in self.items if item.wrong]


def look(settings: Settings) -> State:
    """Test all requirements. If the site offers level `egress`, this enables forwarding."""
    tried: list[tuple[str, Callable[[], None]]] = [
        (settings.mechanism, lambda: _MECHANISMS[settings.mechanism](settings)),
        ("filter", lambda: _try_filter(settings)),
        ("acl", lambda: _try_acl(settings)),
        ("ports", lambda: look_at_ports(settings)),
        ("hooks", lambda: _look_at_hooks(settings)),
    ]
    found = [Item(name, _wrong(action)) for name, action in tried]
    found.append(Item("apptainer", _wrong(lambda: _try_apptainer(settings))))
    return State(tuple(found), Item("egress", _wrong(lambda: _try_egress(settings))) if settings.egress_to else None)


def refresh(settings: Settings, most_s: float = _STALE_AFTER_S) -> None:
    """Write `<run>/capabilities` again if it is older than `most_s`, or older than these programs or their settings."""
    file = settings.run / "capabilities"
    try:
        written_at = file.stat().st_mtime
    except FileNotFoundError:
        written_at = 0.0
    changed_at = max(Path(__file__).with_name("settings.py").stat().st_mtime, _changed_at(settings.apptainer_conf))
    changed_at = max(changed_at, _changed_at(settings.secret))
    if written_at <= changed_at or not 0 <= time.time() - written_at < most_s:
        publish_state(settings, look(settings))


def publish_state(settings: Settings, state: State) -> None:
    """Write `<run>/capabilities`.

    It has `<name>=yes|no` and `<name>_problem` for each item and for `egress`, `network` for level `job` as a whole,
    `problem` for the first fault of that level, and the path of these programs.
    """
    lines = ["format=1", f"checked_at={int(time.time())}", f"network={'no' if state.wrong else 'yes'}"]
    lines += [f"mechanism={settings.mechanism}", f"slots={settings.slots}", f"prefix={settings.prefix}"]
    lines += _fingerprint(settings)
    lines += [_programs()]
    lines += [f"problem={' '.join(text.split())}" for text in state.wrong[:1]]
    egress_wrong = (state.egress.wrong if state.egress else NOT_OFFERED) or "".join(state.wrong[:1])
    for item in (*state.items, Item("egress", egress_wrong)):
        lines.append(f"{item.name}={'no' if item.wrong else 'yes'}")
        lines += [f"{item.name}_problem={' '.join(item.wrong.split())}"] if item.wrong else []
    _write(settings.run, lines)


def publish_refusal(error: WrongValues) -> None:
    """Write the same file if the site's values cannot be used, so that no process reads outdated facts."""
    if error.run is not None:
        problem = " ".join(str(error).split())
        lines = ["format=1", f"checked_at={int(time.time())}", "network=no", _programs(), f"problem={problem}"]
        lines += ["values=no", f"values_problem={problem}", "egress=no", f"egress_problem={problem}"]
        with contextlib.suppress(Trouble):  # the operator needs to read `error`
            _write(error.run, lines)


def _write(run_dir: Path, lines: Sequence[str]) -> None:
    try:
        run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        publish(run_dir / "capabilities", "\n".join(lines) + "\n")
    except OSError as error:
        raise Trouble(
            f"{run_dir}/capabilities cannot be written ({error.strerror}): FFDL_RUN of values.env must be a directory "
            "that root can write to"
        ) from error


def _fingerprint(settings: Settings) -> list[str]:
    with contextlib.suppress(Trouble):  # the item of the mechanism reports it
        if settings.mechanism == "wireguard":
            return [f"secret={wireguard.fingerprint(secret.read(settings))}"]
    return []


def _programs() -> str:
    return f"programs={Path(__file__).resolve().parents[1]}"


def _changed_at(path: Path) -> float:
    """Return when the file changed. A moved file keeps its mtime, so the ctime counts, too."""
    try:
        state = path.stat()
        return max(state.st_mtime, state.st_ctime)
    except OSError:
        return 0.0


def _wrong(action: Callable[[], None]) -> str:
    try:
        action()
    except (Trouble, OSError) as error:
        return str(error)
    return ""


def _try_vxlan(settings: Settings) -> None:
    argv = ["unshare", "--net", "ip", "link", "add", "try", "type", "vxlan", "id", "1", "dstport", "4789"]
    try:
        run(argv, settings.command_timeout_s)
    except Trouble as error:
        raise Trouble(f"{error}: the kernel needs the module vxlan (modprobe vxlan)") from error


def _try_wireguard(settings: Settings) -> None:
    limit_s, new = settings.command_timeout_s, ["unshare", "--net"]
    secret.read(settings)
    run(["wg", "pubkey"], limit_s, base64.b64encode(bytes(32)).decode())
    try:
        run([*new, "ip", "link", "add", "try", "type", "wireguard"], limit_s)
    except Trouble as error:
        if not settings.wireguard_program:
            raise Trouble(f"{error}: {tunnel.NO_WIREGUARD}") from error
        run([settings.wireguard_program, "--version"], limit_s)
        try:
            run([*new, "ip", "tuntap", "add", "dev", "try", "mode", "tun"], limit_s)
        except Trouble as lacking:
            raise Trouble(f"{lacking}: {settings.wireguard_program} needs the module tun (modprobe tun)") from lacking


_MECHANISMS: dict[str, Callable[[Settings], None]] = {"vxlan": _try_vxlan, "wireguard": _try_wireguard}


def _try_filter(settings: Settings) -> None:
    rule = "add rule inet try input udp dport 4789 @th,96,24 1 drop"
    text = f"add table inet try\nadd chain inet try input {{ type filter hook input priority -300; }}\n{rule}\n"
    try:
        run(["unshare", "--net", "nft", "-f", "-"], settings.command_timeout_s, text)
    except Trouble as error:
        raise Trouble(f"{error}: install nftables, and the kernel's modules nf_tables and nf_tables_inet") from error


def _try_egress(settings: Settings) -> None:
    limit_s, new = settings.command_timeout_s, ["unshare", "--net"]
    try:
        rules = egress.node_rules(0, 1, settings, egress.Targets((), (("192.0.2.1", 1),)))
        run([*new, "nft", "-f", "-"], limit_s, rules + egress.forward_rules())
        run([*new, "ip", "link", "add", egress.device(1), "type", "veth", "peer", "name", egress.INSIDE], limit_s)
        run(["getent", "ahostsv4", "127.0.0.1"], limit_s)
    except Trouble as error:
        raise Trouble(f"{error}: level egress needs the kernel's modules veth, nft_nat, nft_masq and nft_ct") from error
    forwarding.ensure(settings)


def _try_acl(settings: Settings) -> None:
    settings.run.mkdir(mode=0o755, parents=True, exist_ok=True)
    directory = settings.run / f".try-{os.getpid()}"
    directory.mkdir(mode=0o700)
    try:
        slots.admit(directory, 1)
    finally:
        directory.rmdir()


def _try_apptainer(settings: Settings) -> None:
    wrong = apptainer.missing(settings)
    if wrong:
        raise Trouble("; ".join(wrong))


def _look_at_hooks(settings: Settings) -> None:
    """Raise Trouble if Slurm does not run our prolog or epilog, or would drain the node because a hook cannot run."""
    wrong = []
    for folder in (settings.slurm_etc / "prolog.d", settings.slurm_etc / "epilog.d"):
        hook = folder / "50-ffdl"
        if not hook.is_file():
            wrong.append(f"{hook} is not there: install it from slurm-configs, mode 755")
        files = [file for file in sorted(folder.glob("[!.]*")) if file.is_file()]
        shut = [file for file in files if not file.stat().st_mode & 0o111]
        wrong += [f"{file} cannot be executed, for which Slurm drains the node: chmod 755 {file}" for file in shut]
    if wrong:
        raise Trouble("; ".join(wrong))


def look_at_ports(settings: Settings) -> None:
    """Raise Trouble if users can open the port of the networks, or a source port that is to prove that root sends.

    With WireGuard: raise Trouble if programs can get its ports by chance.
    """
    if settings.mechanism == "wireguard":
        _look_at_drawn_ports(settings)
        return
    file = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    free = int(file.read_text()) if file.exists() else 1024
    (first, last), own = settings.source_ports, settings.udp_port
    if free <= max(last, own):
        raise Trouble(
            f"{file} is {free}, so any user may open port {own}, which the networks need, or one of {first}-{last}, "
            "which are to prove that root sent a packet: set it higher (sysctl), or NETWORK_UDP_PORT and "
            "NETWORK_SOURCE_PORTS lower"
        )


def _look_at_drawn_ports(settings: Settings) -> None:
    file = Path("/proc/sys/net/ipv4/ip_local_port_range")
    (least, most), (first, last) = (int(word) for word in file.read_text().split()), settings.wireguard_ports
    if first <= most and least <= last:
        raise Trouble(
            f"{file} is {least}-{most}, from which programs draw their ports, and has some of NETWORK_WIREGUARD_PORTS, "
            f"{first}-{last}, which the networks need: change one of the two"
        )
