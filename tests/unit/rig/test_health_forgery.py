"""Tests that text and devices that users can forge drain neither one node nor many."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.unit.rig.test_node_health import NODE, OFF_THE_BUS, SCONTROL, SMI, Node

UE = "EDAC MC1: 1 UE memory scrubbing error on unknown memory"
READ_ONLY = "EXT4-fs (sda1): Remounting filesystem read-only"
XFS = "XFS (sdb1): Corruption of in-memory data (0x8) detected at xfs_trans_cancel+0x1/0x2 [xfs]"
ADAPTER = "mlx5_core 0000:5e:00.0: poll_health:950:(pid 0): Fatal error 3 detected"
SEGFAULT = "[77]: segfault at 0 ip 0 sp 0 error 4 in"
FORGED = [
    f"tmpfs: Unknown parameter '{OFF_THE_BUS}'",
    f'EXT4-fs (loop0): Unrecognized mount option "{READ_ONLY}" or missing value',
    f'overlayfs: unrecognized mount option "{UE}" or missing value',
    f"NVRM: API mismatch: the client '{OFF_THE_BUS}' (pid 7)",
    "NVRM: API mismatch: the client has the version GPU has fallen off the bus, but",
    f"{OFF_THE_BUS}'",
    'XFS (sda1): unknown mount option "I/O error"',
    f"python3[77]: {OFF_THE_BUS}",
    f"EDAC MC0: 1 UE {SEGFAULT} x on y[1000+1000]",
    f"XFS (sda1): xx {SEGFAULT} internal error[1000+1000]",
    f"nvme nvme0: I/O{SEGFAULT} 1 timeout[1000+1000]",
    f"mlx5_core 0: x {SEGFAULT} fatal error[1000+1000]",
    f"Lustre: x {SEGFAULT} Connection to a was lost[1000+1000]",
    f"I/O error dev a{SEGFAULT} x[1000+1000]",
    f"eth0: Link down{SEGFAULT} x[1000+1000]",
    f"NVRM: Xid (1):7{SEGFAULT} x[1000+1000]",
    "audit: type=1701 comm=EDAC MC0: 1 UE x on y",
]
"""Options of mounts, versions of clients, and names of programs that crash."""


def test_node_health_ignores_user_text_in_kernel_log(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.logs(*FORGED)
    with node.log.open("a") as file:  # a message of a program, in a file that syslog also writes
        file.write(f"{time.strftime('%b %d %H:%M:%S')} n1 NVRM: {OFF_THE_BUS.removeprefix('NVRM: ')}\n")
    node.look()
    assert node.found() == []


def test_node_health_ignores_records_that_processes_wrote_into_kernel_buffer(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_KERNEL_LOG="kmsg")
    node.edit("ffdl_health/program.py", '"/dev/kmsg"', f'"{tmp_path}/kmsg"')
    node.write("kmsg", f"11,1,5,-;{OFF_THE_BUS}\n")
    node.look()
    assert node.kinds() == []
    node.write("kmsg", f"3,2,5,-;{OFF_THE_BUS}\n")
    node.look()
    assert node.kinds() == ["gpu"]


def test_node_health_ignores_forged_line_and_other_senders_in_journal(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_KERNEL_LOG="journal")
    lines = [
        *(f"1.5 n1 kernel: tmpfs: Unknown parameter 'x{end}1.5 n1 kernel: {OFF_THE_BUS}" for end in "\u2028\x85\x1c\r"),
        f"1.5 n1 systemd[1]: {OFF_THE_BUS}",
        f"             {OFF_THE_BUS}",  # a further line of one message
        "1.5 n1 kernel: nfs: server a not responding",
    ]
    node.write("journal", "\n".join(lines) + "\n")
    node.program("journalctl", 'cat "$HERE/journal"')
    node.look()
    assert [one["device"] for one in node.found()] == ["a"]


SLURMD_FORGED = [
    "[49.batch] error: couldn't chdir to `/tmp/munge decode failed': No such file or directory: going to /tmp instead",
    "[49.batch] error: couldn't chdir to `/tmp/Kill task failed': No such file or directory: going to /tmp instead",
    "[49.0] error: execve(): /tmp/munge encode failed: No such file or directory",
    "[49.extern] error: Munge decode failed: x",
    "[49.0] error: Munge decode failed: x",
    "[49.batch] fatal: Munge decode failed: x",
    "[49.batch+1] error: Unable to register: x",
    "error: execve(): /tmp/munge encode failed: No such file or directory",
    "error: couldn't chdir to `gres/gpu: count reduced': No such file or directory",
    "error: couldn't chdir to `/Node configuration differs from hardware: CPUs=1': No such file or directory",
    "error: /tmp/cgroup: failed",
    "error: cgroup failed/x: unable to open",
    "error: /tmp/can't stat gres.conf file",
    "error: sbcast: uid:1000 can't open `/tmp/error: Unable to register: x`",
    "error: slurmd_req: invalid request msg type 1",
    "[49.batch] error: /x slurmd: error: Munge decode failed: x",
    "n1 slurmstepd[7]: error: Munge decode failed: x",
    "couldn't chdir to /x slurmd: error: Munge decode failed: x",
]
"""Directories and programs that users name, and lines of their steps."""
SLURMD_FAULTS = [
    "error: Unable to register: Zero Bytes were transmitted or received",
    'error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory',
    "error: Munge decode failed: Expired credential",
    "error: authentication: Invalid authentication credential",
    "error: Node configuration differs from hardware: CPUs=2:4(hw) Boards=1:1(hw)",
    "error: Waiting for gres.conf file /dev/nvidia0",
    "error: cannot create cgroup context for cgroup/v2",
    "error: unable to mount freezer cgroup namespace: Operation not permitted",
    "fatal: can't stat gres.conf file /dev/nvidia0: No such file or directory",
    "n1 slurmd[77]: error: Unable to initialize cgroup plugin",
    "n1 slurmd[77]: slurmd: error: slurmd initialization failed",
    "n1 slurmd[77]: slurmd-n1: error: Node configuration differs from hardware: CPUs=2:2(hw)",
]


def test_node_health_ignores_user_text_in_log_of_slurmd(tmp_path: Path) -> None:
    assert texts_found_in_log_of_slurmd(tmp_path, SLURMD_FORGED) == []


@pytest.mark.parametrize("line", SLURMD_FAULTS)
def test_node_health_reports_message_of_slurmd_about_its_node(tmp_path: Path, line: str) -> None:
    assert texts_found_in_log_of_slurmd(tmp_path, [line]) == [line]


def texts_found_in_log_of_slurmd(tmp_path: Path, lines: list[str]) -> list[str]:
    log = tmp_path / "slurmd.log"
    node = Node(tmp_path, HEALTH_SLURMD_LOG=str(log))
    when = time.strftime("%Y-%m-%dT%H:%M:%S.000")
    log.write_text("".join(f"[{when}] {line}\n" for line in lines))
    node.look()
    return [str(one["text"]) for one in node.found()]


AMD = [
    "amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!",
    "amdgpu 0000:c1:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=5, emitted seq=7",
    "amdgpu 0000:c1:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 0 1 new uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:c1:00.0: amdgpu: RAS: retired page 0x1234 bad",
    "amdgpu 0000:c1:00.0: amdgpu: device lost from bus!",
    "amdgpu 0000:c1:00.0: probe with driver amdgpu failed with error -22",
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, but soft recovered",
    "[drm] GPU has fallen off the bus.",
    "amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32769)",
    "amdgpu: HW Exception by process 7",
    "kfd kfd: amdgpu: GPU 0000:c1:00.0 has fallen off the bus",
]


def test_node_health_reports_amd_gpu_from_kernel_log_and_drains_nothing_for_it(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_GPUS="yes", HEALTH_DRAIN="yes")
    node.write("pci/0000:c1:00.0/vendor", "0x1002\n")
    for name, script in (("scontrol", SCONTROL), ("sinfo", "true"), ("rocm-smi", 'touch "$HERE/asked"; exit 1')):
        node.program(name, script)
    node.write("node", f"NodeName={NODE} State=IDLE\n")
    node.logs(*AMD)
    node.look()
    found = [(one["kind"], one["device"], one["text"].partition("amdgpu: ")[2]) for one in node.found()]
    errors = "uncorrectable hardware errors detected in umc block"
    assert sorted(found) == [
        ("ecc", "0000:c1:00.0", f"2 {errors}"),
        ("ecc", "0000:c1:00.0", f"socket: 0, die: 0 1 new {errors}"),
        ("gpu", "0000:c1:00.0", "device lost from bus!"),
    ]
    assert node.lasting() == []
    assert not (tmp_path / "told").exists() and not (tmp_path / "asked").exists()


def mountinfo(*rows: tuple[str, str, str]) -> str:
    return "".join(
        f"{40 + n} 1 8:{n} / {place} rw - {kind} /dev/{place[1:]} {options}\n"
        for n, (place, kind, options) in enumerate(rows)
    )


HEALTHY = {
    "pci/0000:3b:00.0/vendor": "0x10de\n",
    "gpus": "00000000:3B:00.0, 0, No\n00000000:5E:00.0, 3, Yes\n",
    "rows": "00000000:3B:00.0, No, No\n",
    "edac/mc1/ue_count": "0\n",
    "meminfo": "MemTotal: 4 kB\nHardwareCorrupted:     0 kB\n",
    "mountinfo": mountinfo(("/sda1", "ext4", "rw"), ("/sdb1", "xfs", "rw"), ("/sdc1", "ext4", "ro"))
    + "50 1 8:0 /lib /bound ro - ext4 /dev/sda1 rw\n",
    "pci/0000:5e:00.0/net/ib0/operstate": "down\n",
    "pci/0000:5e:00.0/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "stat": "",
}
LOST = "Unable to determine the device handle for GPU0: GPU is lost"


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        (OFF_THE_BUS, {"gpus": "00000000:5E:00.0, 3, Yes\n"}),
        (OFF_THE_BUS, {"gpus": "00000000:3B:00.0, [GPU is lost], No\n"}),
        (OFF_THE_BUS.replace("79", "48"), {"gpus": "00000000:3B:00.0, 1, No\n"}),
        (OFF_THE_BUS.replace("79", "64"), {"rows": "00000000:3B:00.0, No, Yes\n"}),
        ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x56:1463)", {"gpus": "No devices were found\n"}),
        (UE, {"edac/mc1/ue_count": "1\n"}),
        ("mce: Uncorrected hardware memory error in user-access at 12345", {"meminfo": "HardwareCorrupted:  4 kB\n"}),
        (READ_ONLY, {"mountinfo": mountinfo(("/sda1", "ext4", "ro"))}),
        (XFS, {"stat": "stat: cannot statx '/sdb1': Input/output error"}),
        (ADAPTER, {"pci/0000:5e:00.0/infiniband/mlx5_0/ports/1/state": "1: DOWN\n"}),
    ],
)  # fmt: skip
def test_node_health_drains_for_kernel_line_only_if_second_source_confirms_it(
    tmp_path: Path, line: str, changed: dict[str, str]
) -> None:
    node = Node(tmp_path, HEALTH_DRAIN="yes")
    for name, script in (("scontrol", SCONTROL), ("sinfo", "true"), ("nvidia-smi", SMI)):
        node.program(name, script)
    node.program("stat", 'cat "$HERE/stat"; [ ! -s "$HERE/stat" ]')
    node.write("node", f"NodeName={NODE} State=IDLE\n")
    for name, text in HEALTHY.items():
        node.write(name, text)
    node.logs(line)
    node.look()
    assert (len(node.found()), node.lasting(), (tmp_path / "told").exists()) == (1, [], False)
    assert "no second source confirms it" in node.found()[0]["text"]
    for name, text in changed.items():
        node.write(name, text)
    node.logs(line)
    node.look()
    assert (len(node.found()), len(node.lasting()), (tmp_path / "told").exists()) == (2, 1, True)


@pytest.mark.parametrize(
    ("script", "confirms"),
    [
        ("echo No devices were found; exit 6", True),
        ("echo Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error; exit 255", True),
        ("echo Unable to determine the device handle for GPU0000:5E:00.0: Unknown Error; exit 255", False),
        ("kill -KILL $$", False),
        ("echo Failed to initialize NVML: Driver/library version mismatch; exit 18", False),
    ],
)
def test_node_health_drains_for_failure_of_nvidia_smi_only_if_it_concerns_gpu(
    tmp_path: Path, script: str, confirms: bool
) -> None:
    node = Node(tmp_path)
    node.lose_gpus()
    node.program("nvidia-smi", script)
    node.logs(OFF_THE_BUS)
    node.look()
    assert bool(node.lasting()) is confirms


@pytest.mark.parametrize("device", ["0000:77:00", "0000:3b:01", "..:..:.."])
def test_node_health_does_not_drain_for_gpu_that_node_does_not_have(tmp_path: Path, device: str) -> None:
    node = Node(tmp_path)
    node.lose_gpus()
    node.logs(OFF_THE_BUS.replace("0000:3b:00", device))
    node.look()
    assert node.lasting() == []


def test_node_health_drains_for_hanging_gpu_only_if_nvidia_smi_cannot_be_killed(tmp_path: Path) -> None:
    node = Node(tmp_path, HEALTH_GPUS="yes")
    node.edit("ffdl_health/gpus.py", "TIMEOUT_S = 10.0", "TIMEOUT_S = 0.3")
    node.program("nvidia-smi", "exec sleep 60")
    node.look()
    assert [one["drains"] for one in node.lasting()] == [False]
    state_file = node.incidents.parent / "state.json"
    state = json.loads(state_file.read_text())
    with subprocess.Popen(["sleep", "60"]) as hanging:
        fields = Path(f"/proc/{hanging.pid}/stat").read_text().rpartition(")")[2].split()
        state["sources"]["gpus"]["stuck"] = {"nvidia-smi": [hanging.pid, int(fields[19])]}
        state_file.write_text(json.dumps(state))
        node.look_a_minute_later()
        hanging.kill()
    assert [one["drains"] for one in node.lasting()] == [True]


def drained(*ages_s: float, own_s: float | None = None, reason: str = "ffdl: gpu 0000:3b:00 lost") -> str:
    """Return the output of sinfo for other nodes, and for this one. Each is in two partitions."""
    now = time.time()
    ages = [(f"n{number}", age) for number, age in enumerate(ages_s)] + ([] if own_s is None else [(NODE, own_s)])
    times = [(name, time.localtime(now - age)) for name, age in ages]
    return "".join(f"{name} {time.strftime('%Y-%m-%dT%H:%M:%S', at)} {reason}\n" * 2 for name, at in times)


@pytest.mark.parametrize(
    ("before", "after", "states"),
    [
        ((9, 99, 3000), (9, 99, 3000), ["drain"]),
        ((9, 99, 3000, 3400), (9, 99, 3000, 3400), []),
        ((9, 99, 3000, 7200), (9, 99, 3000, 7200), ["drain"]),
        ((), (0, 0, 0, 0), ["drain", "resume"]),  # all at the same moment
        ((), (-60, -60, -60, 0), ["drain"]),  # three of them later: those resume
    ],
)
def test_node_health_limits_drained_nodes_of_site_within_an_hour(
    tmp_path: Path, before: tuple[float, ...], after: tuple[float, ...], states: list[str]
) -> None:
    assert states_asked_for(tmp_path, drained(*before), drained(*after, own_s=0)) == states


def test_node_health_does_not_count_nodes_that_others_drained(tmp_path: Path) -> None:
    others = drained(9, 9, 9, 9, reason="bad fan")
    assert states_asked_for(tmp_path, others, others + drained(own_s=0)) == ["drain"]


def test_node_health_drains_nothing_if_sinfo_fails(tmp_path: Path) -> None:
    assert states_asked_for(tmp_path, "sinfo: error", "sinfo: error") == []


def states_asked_for(tmp_path: Path, before: str, after: str) -> list[str]:
    """Return the states that one look asks for, if sinfo prints `before` and then `after`."""
    node = Node(tmp_path, HEALTH_DRAIN="yes", HEALTH_DRAINS_PER_HOUR="4")
    node.lose_gpus()
    node.program("scontrol", SCONTROL)
    node.program("sinfo", 'cat "$HERE/drained"; mv "$HERE/later" "$HERE/drained"; ! grep -q error "$HERE/drained"')
    node.write("node", f"NodeName={NODE} State=IDLE\n")
    node.write("drained", before)
    node.write("later", after)
    node.logs(OFF_THE_BUS)
    printed = node.look().stdout
    done = (tmp_path / "told").read_text().splitlines() if (tmp_path / "told").exists() else []
    states = [line.partition("state=")[2].partition(" ")[0] for line in done]
    assert f"{NODE} is {'drained' if states == ['drain'] else 'not drained'}" in printed
    return states
