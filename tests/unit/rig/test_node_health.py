"""The HealthCheckProgram of slurm-configs/, rendered and run as a program over planted logs and programs.

What lasts on a node now is in a file of its own: while it does, once each, and for everybody.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.unit.rig.test_slurm_configs import CONFIGS, render

OFF_THE_BUS = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
NODE = os.uname().nodename.partition(".")[0]
SMI = """\
case "$*" in
  *--query-gpu*) cat "$HERE/gpus" ;;
  *--query-remapped-rows*) cat "$HERE/rows" ;;
  *nvlink*) cat "$HERE/links" ;;
esac
"""
SCONTROL = """\
case "$*" in
  *show*) cat "$HERE/node" ;;
  *) echo "$*" >>"$HERE/told" ;;
esac
"""

AS_PROGRAM = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


class Node:
    """A node of a site: its values, its log, and its programs."""

    def __init__(self, place: Path, **values: str) -> None:
        self.place, self.log, self.bin = place, place / "kern.log", place / "bin"
        self.incidents = place / "run" / "health" / "incidents"
        self.bin.mkdir()
        self.log.touch()
        quiet = {"HEALTH_GPUS": "no", "HEALTH_CLOCK_S": "0", "HEALTH_MOUNTS": "none", "HEALTH_DISKS": ""}
        chosen = {"FFDL_RUN": str(place / "run"), "HEALTH_KERNEL_LOG": str(self.log), **quiet, **values}
        (place / "site.env").write_text(
            "ACCOUNTING_STORAGE_HOST=db\n" + "".join(f"{k}={v}\n" for k, v in chosen.items())
        )
        done = render(place / "etc", "--values", str(place / "site.env"))
        assert done.returncode == 0, done.stderr
        self.edit("ffdl_health/bounded.py", '"PATH": "', f'"PATH": "{self.bin}:')
        self.edit("ffdl_health/pci.py", "/sys/bus/pci/devices", f"{place}/pci")
        self.edit("ffdl_health/confirmation.py", "/sys/devices/system/edac/mc", f"{place}/edac")
        self.edit("ffdl_health/confirmation.py", "/proc/meminfo", f"{place}/meminfo")
        self.edit("ffdl_mounts.py", '"/proc/self/mountinfo"', f'"{place}/mountinfo"')
        self.write("mountinfo", "")

    def edit(self, module: str, old: str, new: str) -> None:
        """Change an installed file."""
        path = self.place / "etc" / "libexec" / module
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))

    def program(self, name: str, script: str) -> None:
        """A program of the system's."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\nHERE={self.place}\n{script}")
        path.chmod(0o755)

    def write(self, name: str, text: str) -> None:
        (self.place / name).parent.mkdir(parents=True, exist_ok=True)
        (self.place / name).write_text(text)

    def lose_gpus(self, *buses: str) -> None:
        """Make sysfs and nvidia-smi show GPUs that fell off the bus."""
        for bus in buses or ("3b",):
            self.write(f"pci/0000:{bus}:00.0/vendor", "0x10de\n")
        self.program("nvidia-smi", "echo 'Unable to determine the device handle: GPU is lost'; exit 15")

    def logs(self, *lines: str, at: float | None = None) -> None:
        """Lines of the kernel's, as syslog writes them."""
        when = datetime.fromtimestamp(time.time() if at is None else at, UTC).isoformat()
        with self.log.open("a") as file:
            file.writelines(f"{when} n1 kernel: [ 1234.567890] {line}\n" for line in lines)

    @property
    def health(self) -> str:
        """The program."""
        return str(self.place / "etc" / "libexec" / "health")

    def look(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the program once, in a forked process."""
        argv = [sys.executable, "-c", AS_PROGRAM, self.health, *words]
        done = preloaded.run(argv, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done
        return done

    def look_a_minute_later(self) -> None:
        """As if that long had passed since what is not looked at each time was."""
        file = self.incidents.parent / "state.json"
        if file.exists():
            state = json.loads(file.read_text())
            state["looked_at_all"] = state.get("looked_at_all", 0.0) - 60.0
            file.write_text(json.dumps(state))
        self.look()

    def found(self) -> list[Mapping[str, Any]]:
        return [json.loads(line) for line in self.incidents.read_text().splitlines()] if self.incidents.exists() else []

    def lasting(self) -> list[Mapping[str, Any]]:
        """What lasts now, of which it keeps a file of its own."""
        path = self.incidents.with_name("lasting")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def kinds(self) -> list[str]:
        return [one["kind"] for one in self.found()]


FINDINGS = [
    (OFF_THE_BUS, "gpu", "0000:3b:00"),
    ("NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', DBE (double bit error)", "ecc", "0000:3b:00"),
    ("amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block", "ecc", "0000:c3:00.0"),
    (
        "amdgpu 0000:c3:00.0: amdgpu: socket: 0, die: 1, 3 uncorrectable hardware errors detected in umc block",
        "ecc",
        "0000:c3:00.0",
    ),
    ("amdgpu 0000:03:00.0: Fatal error during GPU init", "gpu", "0000:03:00.0"),
    ("amdgpu 0000:03:00.0: amdgpu: GPU reset(2) failed", "gpu", "0000:03:00.0"),
    ("NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row marked", "ecc", "0000:3b:00"),
    ("NVRM: Xid (PCI:0000:3b:00): 95, pid=7, Uncontained", "ecc", "0000:3b:00"),
    ("NVRM: Xid (PCI:0000:3b:00): 74, NVLink: fatal error detected on link 3", "nvlink", "0000:3b:00"),
    ("NVRM: Xid (PCI:0000:3b:00): 119, pid=7, Timeout waiting for RPC from GSP", "gpu", "0000:3b:00"),
    ("NVRM: Xid (PCI:0000:3b:00): 13, pid=7, Graphics Exception", "gpu_program", "0000:3b:00"),
    ("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU Fault", "gpu_program", "0000:3b:00"),
    ("NVRM: Xid (PCI:0000:3b:00): 43, pid=7", "gpu_program", "0000:3b:00"),
    ("NVRM: Xid (PCI:0000:3b:00): 45, pid=7", "gpu_program", "0000:3b:00"),
    ("NVRM: Xid (PCI:0000:3b:00): 999, pid=7", "gpu_other", "0000:3b:00"),
    ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", "memory", "MC0"),
    ("EDAC MC1: 1 UE memory scrubbing error on unknown memory", "memory", "MC1"),
    ("mce: [Hardware Error]: Machine check events logged", "memory", ""),
    ("EXT4-fs error (device sda1): ext4_find_entry:1456: inode #2: comm ls: reading directory", "disk", "sda1"),
    ("EXT4-fs (sda1): Remounting filesystem read-only", "disk", "sda1"),
    ("XFS (nvme0n1p1): Corruption of in-memory data (0x8) detected", "disk", "nvme0n1p1"),
    ("nfs: server nas.example.org not responding, still trying", "nfs", "nas.example.org"),
    ("blk_update_request: I/O error, dev sdb, sector 2048 op 0x0:(READ)", "io", "sdb"),
    ("Buffer I/O error on dev sdb1, logical block 1, async page read", "io", "sdb1"),
    ("Out of memory: Killed process 4321 (slurmd) total-vm:1kB", "out_of_memory", "slurmd"),
    ("mlx5_core 0000:5e:00.0 ib0: Link down", "network", "ib0"),
    ("ixgbe 0000:01:00.0 eth0: NIC Link is Down", "network", "eth0"),
    ("CPU12: Package temperature above threshold, cpu clock throttled", "thermal", "CPU12"),
]
"""Lines of the kernel's, each with its kind and device."""
ORDINARY = [
    "Memory cgroup out of memory: Killed process 77 (python3) total-vm:1kB",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode",
    "ixgbe 0000:01:00.0 eth0: NIC Link is Up 10 Gbps",
    "nfs: server nas.example.org OK",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
    "CPU12: Package temperature/speed normal",
    "python3[77]: segfault at 0 ip 0 sp 0 error 4",
]


def test_node_health_classifies_kernel_log_lines_and_ignores_ordinary_ones(tmp_path: Path) -> None:
    node, logged_at = Node(tmp_path), time.time()
    node.logs(*ORDINARY, *(line for line, _, _ in FINDINGS), at=logged_at)
    node.look()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for found, (line, *meant) in zip(sorted(node.found(), key=lambda one: one["text"]), sorted(FINDINGS), strict=True):
        assert found["text"].startswith(line) and [found["kind"], found["device"]] == meant
        assert found["boot_id"] == boot_id and abs(float(found["at"]) - logged_at) < 1


def test_node_health_reports_each_line_once_across_log_rotation(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.logs(OFF_THE_BUS)
    node.look()
    node.look()
    node.logs("nfs: server a not responding")
    node.log.rename(tmp_path / "kern.log.1")
    node.logs("nfs: server b not responding")
    node.look()
    node.look()
    assert [one["device"] for one in node.found()] == ["0000:3b:00", "a", "b"]
    node.log.write_text("")  # copytruncate
    node.look()
    node.logs("nfs: server c not responding")
    node.look()
    assert [one["device"] for one in node.found()][3:] == ["c"]


def test_node_health_waits_for_end_of_incomplete_line(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.look()
    node.log.write_text("nfs: server a not resp")
    node.look()
    assert node.kinds() == []
    with node.log.open("a") as file:
        file.write("onding\n")
    node.look()
    assert [one["device"] for one in node.found()] == ["a"]


def test_node_health_ignores_lines_logged_before_boot(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.logs(OFF_THE_BUS, at=time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) - 60)
    with node.log.open("a") as file:
        file.write(f"{OFF_THE_BUS}\n")  # at the first look, and nobody knows of when
    node.look()
    assert node.kinds() == []


def test_node_health_limits_and_counts_repeated_findings(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.logs(*[f"blk_update_request: I/O error, dev sdb, sector {number}" for number in range(1000)])
    node.look()
    found = node.found()
    assert len(found) == 10
    assert str(found[-1]["text"]).endswith("(and 990 more until now)")


def test_node_health_rotates_incident_file_and_makes_it_readable(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.incidents.parent.mkdir(parents=True)
    node.incidents.write_text("x" * (256 << 10))
    node.logs(OFF_THE_BUS)
    before = os.umask(0o077)
    try:
        node.look()
    finally:
        os.umask(before)
    assert node.kinds() == ["gpu"]
    assert node.incidents.with_name("incidents.1").stat().st_size == 256 << 10
    assert node.incidents.stat().st_mode & 0o777 == 0o644
    assert (node.incidents.parent / "state.json").stat().st_mode & 0o777 == 0o600


def test_node_health_writes_pending_incidents_once_after_kill(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.logs(OFF_THE_BUS)
    node.look()
    whole = node.incidents.read_text()
    state_file = node.incidents.parent / "state.json"
    state = json.loads(state_file.read_text()) | {"pending": whole, "size": 0}
    for there in ("", whole[:20], whole):
        node.incidents.write_text(there)
        state_file.write_text(json.dumps(state))
        node.look()
        assert node.incidents.read_text() == whole


def test_node_health_starts_over_after_unreadable_state_file(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.look()
    (node.incidents.parent / "state.json").write_text("{")
    node.logs(OFF_THE_BUS)
    node.look()
    assert node.kinds() == ["gpu"]


def test_node_health_reads_slurmd_errors_from_its_log(tmp_path: Path) -> None:
    slurmd = tmp_path / "slurmd.log"
    node = Node(tmp_path, HEALTH_SLURMD_LOG=str(slurmd))
    when = datetime.now().isoformat(timespec="milliseconds")
    slurmd.write_text(f"[{when}] launch task 1.0\n[{when}] error: Unable to register: Zero Bytes were transmitted\n")
    node.look()
    assert [(one["kind"], one["text"]) for one in node.found()] == [
        ("slurmd", "error: Unable to register: Zero Bytes were transmitted")
    ]


def test_node_health_reports_missing_log_and_reads_the_others(tmp_path: Path) -> None:
    slurmd = tmp_path / "slurmd.log"
    slurmd.write_text(f"[{datetime.now().isoformat()}] fatal: cannot go on\n")
    node = Node(tmp_path, HEALTH_SLURMD_LOG=str(slurmd))
    node.log.unlink()
    done = node.look()
    assert f"health: kernel: [Errno 2] No such file or directory: '{node.log}'" in done.stderr
    assert node.kinds() == ["slurmd"]


def test_node_health_reports_full_disk_once_until_space_is_freed(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_DISKS="/data")
    node.program("stat", 'cat "$HERE/disk"')
    for told, count in (
        ("100 50 100 50", 0),
        ("100 2 100 50", 1),
        ("100 1 100 50", 1),
        ("100 9 9 9", 1),
        ("9 9 100 0", 2),
    ):
        node.write("disk", told)
        node.look_a_minute_later()
        assert len(node.found()) == count, told
    assert node.found()[0]["text"] == "/data is full: 98 % of its space"
    assert node.found()[1]["text"] == "/data is full: 100 % of its files"


def test_node_health_checks_disks_once_a_minute_and_logs_every_time(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_DISKS="/data")
    node.program("stat", 'echo asked >>"$HERE/asked"; echo "100 50 100 50"')
    node.look()
    node.logs(OFF_THE_BUS)
    node.look()
    assert node.kinds() == ["gpu"]
    assert (tmp_path / "asked").read_text() == "asked\n"
    node.look_a_minute_later()
    assert (tmp_path / "asked").read_text() == "asked\n" * 2


def test_node_health_reports_stale_mount_but_not_missing_mount(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_MOUNTS="/shared:/gone")
    node.program(
        "stat", 'case "$*" in */shared) echo "stat: Stale file handle"; exit 1;; esac; echo "No such file"; exit 1'
    )
    node.look()
    assert [(one["kind"], one["device"]) for one in node.found()] == [("mount", "/shared")]


def test_node_health_abandons_hanging_mount_check_and_keeps_one_child(tmp_path: Path) -> None:
    """What hangs in the kernel cannot be killed: here it is a process in the place of the first one."""
    node = Node(tmp_path, HEALTH_MOUNTS="/shared")
    programs = tmp_path / "etc" / "libexec" / "ffdl_health"
    module = programs / "mounts.py"
    module.write_text(module.read_text().replace("TIMEOUT_S = 8.0", "TIMEOUT_S = 0.3"))
    node.program("stat", 'echo asked >>"$HERE/asked"; touch "$HERE/begun"; exec sleep 60')
    # The time counts from when it has begun.
    begun, text = tmp_path / "begun", (programs / "bounded.py").read_text()
    wait = (
        f"    while not Path({str(begun)!r}).exists():\n        time.sleep(0.01)\n    Path({str(begun)!r}).unlink()\n"
    )
    assert text.count("    with child.stdout as pipe:\n") == 1
    wait += "    deadline = time.monotonic() + timeout_s\n    with child.stdout as pipe:\n"
    (programs / "bounded.py").write_text(text.replace("    with child.stdout as pipe:\n", wait))
    node.look()
    assert [one["text"] for one in node.found()] == ["/shared, not mounted: does not answer within 0.3 s"]
    state_file = node.incidents.parent / "state.json"
    state = json.loads(state_file.read_text())
    with subprocess.Popen(["sleep", "60"]) as hanging:
        fields = Path(f"/proc/{hanging.pid}/stat").read_text().rpartition(")")[2].split()
        state["sources"]["mounts"]["stuck"] = {"mount:/shared": [hanging.pid, int(fields[19])]}
        state_file.write_text(json.dumps(state))
        node.look_a_minute_later()
        hanging.kill()
    assert (tmp_path / "asked").read_text() == "asked\n"
    node.look_a_minute_later()
    assert (tmp_path / "asked").read_text() == "asked\n" * 2
    assert len(node.found()) == 1


def test_node_health_reports_increased_gpu_error_counters(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_GPUS="yes")
    node.program("nvidia-smi", SMI)
    node.write("gpus", "0000:3B:00.0, 7, No\n0000:5E:00.0, [N/A], No\n")
    node.write("rows", "0000:3B:00.0, No, No\n")
    node.write("links", "GPU 0: A100\n\t Link 0: Replay Errors: 5\n\t Link 0: Recovery Errors: 0\n")
    node.look()
    assert node.kinds() == []  # what they had counted before anybody looked
    node.write("gpus", "0000:3B:00.0, 9, Yes\n0000:5E:00.0, [N/A], No\n")
    node.write("rows", "0000:3B:00.0, No, Yes\n")
    node.write("links", "GPU 0: A100\n\t Link 0: Replay Errors: 6\n\t Link 0: Recovery Errors: 1\n")
    node.look_a_minute_later()
    node.look_a_minute_later()
    assert sorted(str(one["text"]) for one in node.found()) == [
        "Recovery errors of NVLink 0: 1, 0 before",
        "pages are to be retired: the GPU wants a reset",
        "rows of its memory could not be remapped: the GPU is to be replaced",
        "uncorrected ECC errors: 9, 7 before",
    ]
    node.write("gpus", "0000:3B:00.0, 9, Yes\n")
    node.look_a_minute_later()
    assert node.found()[-1]["text"] == "nvidia-smi saw 2 GPUs before, now: 1 answer"


def test_node_health_reports_clock_offset_from_chrony(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_CLOCK_S="5")
    fields = ["C0A80101", "192.168.1.1", "3", "1700000000.0", "-7.25", *["0.0"] * 8, "Normal"]
    node.program("chronyc", f"echo {','.join(fields)}")
    node.look()
    assert [(one["kind"], one["text"]) for one in node.found()] == [("clock", "the clock is 7.250 s off, says chrony")]


def test_node_health_continues_journal_after_cursor(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_KERNEL_LOG="journal")
    line = "echo '1700000000.25 n1 kernel: nfs: server a not responding'; echo '-- cursor: s=77;i=1'"
    node.program("journalctl", f'echo "$*" >>"$HERE/asked"; {line}')
    node.look()
    node.look()
    asked = (tmp_path / "asked").read_text().splitlines()
    assert "--after-cursor" not in asked[0]
    assert asked[1].endswith("--after-cursor s=77;i=1")
    assert [(one["at"], one["device"]) for one in node.found()] == [(1700000000.25, "a")] * 2


def test_node_health_does_not_drain_node_by_default(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.program("scontrol", SCONTROL)
    node.write("node", f"NodeName={NODE} State=IDLE")
    node.lose_gpus()
    node.logs(OFF_THE_BUS)
    node.look()
    assert not (tmp_path / "told").exists()


@pytest.mark.parametrize(
    ("state", "drained"),
    [
        ("State=IDLE", True),
        ("State=MIXED+CLOUD", True),
        ("State=IDLE+DRAIN Reason=bad fan [root@2026-11-01T10:00:00]", False),
        ("State=DOWN* Reason=Not responding [slurm@2026-11-01T10:00:00]", False),
    ],
)
def test_node_health_drains_failing_node_only_if_it_is_not_drained_or_down(
    tmp_path: Path, state: str, drained: bool
) -> None:
    node = Node(tmp_path, HEALTH_DRAIN="yes")
    node.program("scontrol", SCONTROL)
    node.program("sinfo", "true")
    node.write("node", f"NodeName={NODE} {state}\n")
    node.logs("EDAC MC0: 1 CE memory read error on DIMM#0")
    node.look()
    assert not (tmp_path / "told").exists()  # a sign, not a reason to take the node
    node.lose_gpus()
    node.logs(OFF_THE_BUS)
    node.look()
    told = (tmp_path / "told").read_text() if (tmp_path / "told").exists() else ""
    assert told.startswith(f"update nodename={NODE} state=drain reason=ffdl: gpu 0000:3b:00 NVRM: Xid") is drained
    assert bool(told) is drained


@pytest.mark.parametrize(
    ("reason", "resume", "resumed"),
    [
        ("ffdl: nfs /shared is stale [root@2026-11-01T10:00:00]", "yes", True),
        ("ffdl: nfs /shared is stale [root@2026-11-01T10:00:00]", "no", False),
        ("ffdl_maintenance [root@2026-11-01T10:00:00]", "yes", False),
        ("waits for ffdl: [alice@2026-11-01T10:00:00]", "yes", False),
    ],
)
def test_node_health_resumes_only_node_that_it_drained(tmp_path: Path, reason: str, resume: str, resumed: bool) -> None:
    node = Node(tmp_path, HEALTH_DRAIN="yes", HEALTH_RESUME=resume)
    node.program("scontrol", SCONTROL)
    node.write("node", f"NodeName={NODE} State=IDLE+DRAIN Reason={reason}\n")
    node.look()
    assert (tmp_path / "told").exists() is resumed
    if resumed:
        assert (tmp_path / "told").read_text() == f"update nodename={NODE} state=resume\n"


def test_node_health_keeps_draining_event_of_kernel_log_until_reboot(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_DRAIN="yes", HEALTH_RESUME="yes")
    node.program("scontrol", SCONTROL)
    node.write("node", f"NodeName={NODE} State=IDLE+DRAIN Reason=ffdl: gpu 0000:3b:00\n")
    node.lose_gpus()
    node.logs(OFF_THE_BUS, "EXT4-fs error (device sda1): bad block")
    node.look()
    node.look()
    assert [(one["kind"], one["drains"]) for one in node.lasting()] == [("gpu", True)]
    assert not (tmp_path / "told").exists()
    state_file = node.incidents.parent / "state.json"
    state_file.write_text(json.dumps(json.loads(state_file.read_text()) | {"boot_id": "an earlier one"}))
    node.log.write_text("")
    node.look()
    assert node.lasting() == []
    assert (tmp_path / "told").read_text() == f"update nodename={NODE} state=resume\n"


def test_node_health_skips_check_while_another_check_runs(tmp_path: Path) -> None:
    import fcntl

    node = Node(tmp_path)
    node.look()
    node.logs(OFF_THE_BUS)
    with (node.incidents.parent / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        node.look()
        assert node.kinds() == []
    node.look()
    assert node.kinds() == ["gpu"]


def test_node_health_print_option_changes_no_file(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.logs(OFF_THE_BUS)
    argv = [sys.executable, "-IS", node.health, "--print"]  # as its first line says
    assert OFF_THE_BUS in subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert not (tmp_path / "run").exists()


def test_node_health_reports_missing_site_values_in_one_line() -> None:
    argv = [str(CONFIGS / "libexec" / "health"), "--print"]
    done = subprocess.run([sys.executable, "-IS", *argv], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("has no values of a site: run what render.py has made of it (docs/node-health.md)\n")
    assert len(done.stderr.splitlines()) == 1 and "HEALTH_" not in done.stderr


STALE = 'case "$*" in */shared) cat "$HERE/answer"; exit 1;; *) echo "100 2 100 50";; esac'


def test_lasting_file_lists_condition_with_its_start_while_it_lasts(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_MOUNTS="/shared", HEALTH_DISKS="/data")
    node.program("stat", STALE)
    node.write("answer", "stat: Stale file handle\n")
    node.look()
    mount, full = node.lasting()  # what drains comes first
    assert (mount["kind"], mount["lasts"], mount["drains"], mount["device"]) == ("mount", True, True, "/shared")
    assert (full["kind"], full["drains"]) == ("full", False)
    (began,) = [one for one in node.found() if one["kind"] == "mount"]
    assert {name: mount[name] for name in began} == began
    inode = node.incidents.with_name("lasting").stat().st_ino
    node.look_a_minute_later()
    assert node.incidents.with_name("lasting").stat().st_ino == inode  # nothing is new: nothing is written
    node.write("answer", "100 50 100 50\n")
    node.look_a_minute_later()
    assert [one["device"] for one in node.lasting()] == ["/data"]
    node.program("stat", "echo 100 50 100 50")
    node.look_a_minute_later()
    assert node.incidents.with_name("lasting").read_text() == ""


def test_lasting_file_is_readable_by_all_and_bounded(tmp_path: Path) -> None:
    places = [f"/m{number}" for number in range(60)]
    node = Node(tmp_path, HEALTH_MOUNTS=":".join(places))
    node.program("stat", 'echo "Stale file handle"; exit 1')
    node.lose_gpus(*(f"{number:02x}" for number in range(30)))
    node.logs(*(OFF_THE_BUS.replace("3b", f"{number:02x}") for number in range(30)))
    node.look()
    path = node.incidents.with_name("lasting")
    assert path.stat().st_mode & 0o777 == 0o644
    assert len(node.lasting()) == 64


def test_lasting_file_is_written_again_if_it_is_missing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.lose_gpus()
    node.logs(OFF_THE_BUS)
    node.look()
    node.incidents.with_name("lasting").unlink()
    node.look()
    assert [one["device"] for one in node.lasting()] == ["0000:3b:00"]


def test_lasting_file_includes_condition_remembered_by_earlier_release(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_MOUNTS="/shared")
    node.program("stat", 'echo "Stale file handle"; exit 1')
    node.look()
    state_file = node.incidents.with_name("state.json")
    state = json.loads(state_file.read_text())
    del state["lasting"], state["lasts_until_reboot"]
    state_file.write_text(json.dumps(state))
    node.look_a_minute_later()
    assert [one["device"] for one in node.lasting()] == ["/shared"]
    assert len(node.found()) == 1
