"""What learners use: control groups of both versions, processes, networks, GPUs by a library like NVML."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.controller.metrics.monitor import EVERY_S, Sampler, pause_after
from ffdl_batch.controller.metrics.resource_usage import Gpus, ProcessUsage, find_own
from ffdl_batch.domain.metrics.usage import GpuUse, UsageSample, Use, decode_sample, encode_sample
from ffdl_batch.host.processes import Process

NVML = """
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned long long total, free, used; } memory;
static int up;
int nvmlInit_v2(void) { up = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(long)(index + 1);
    return !up || index > 1;
}
int nvmlDeviceGetHandleByUUID(const char *name, void **device) { *device = (void *)9L; return name[4] != 'a'; }
int nvmlDeviceGetUtilizationRates(void *device, utilization *found) {
    found->gpu = 40 + (long)device;
    return (long)device == 9;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *found) {
    found->total = 1ULL << 35;
    found->used = (long)device << 33;
    return 0;
}
"""


def group(path: Path, pids: list[int], **files: str) -> None:
    path.mkdir(parents=True)
    (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    return tmp_path / "proc"


def test_cgroup_v2_reads_each_file_at_level_owned_by_job(tmp_path: Path, proc: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/slurm/job_7/step_0/user/task_0\n")
    step = tmp_path / "cgroup" / "slurm" / "job_7" / "step_0"
    group(step, [], memory__current="9", memory__peak="9")
    group(step / "slurm", [1])
    io = "8:0 rbytes=5 wbytes=1\n8:16 rbytes=2 wbytes=3 rios=4\n"
    group(step / "user", [], memory__current="700\n", memory__peak="900\n", io__stat=io)
    group(step / "user" / "task_0", [10, 11], cpu__stat="usage_usec 2500000\nuser_usec 1\n")
    found = find_own({10, 11, 12}, str(proc), str(tmp_path / "cgroup"))
    assert found is not None and found.read() == Use(2.5, 700, 900, 7, 4)


def test_find_own_cgroup_returns_none_for_shared_root_or_unknown_group(tmp_path: Path, proc: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/user.slice\n")
    group(tmp_path / "cgroup" / "user.slice", [10, 99], cpu__stat="usage_usec 1\n", memory__current="1\n")
    assert find_own({10}, str(proc), str(tmp_path / "cgroup")) is None
    (proc / "self" / "cgroup").write_text("0::/\n")
    assert find_own({10}, str(proc), str(tmp_path / "cgroup")) is None
    (proc / "self" / "cgroup").unlink()
    assert find_own({10}, str(proc), str(tmp_path / "cgroup")) is None


def test_cgroup_v1_reads_each_controller_hierarchy(tmp_path: Path, proc: Path) -> None:
    task = "/slurm/job_7/step_0/task_0"
    lines = f"4:memory:{task}\n3:cpu,cpuacct:{task}\n2:blkio:/\n1:name=systemd:/\n0::/x\n"
    (proc / "self" / "cgroup").write_text(lines)
    root = tmp_path / "cgroup"
    group(root / f"memory{task}", [10], memory__usage_in_bytes="70\n", memory__max_usage_in_bytes="90\n")
    group(root / f"cpu,cpuacct{task}", [10], cpuacct__usage="1500000000\n")
    found = find_own({10}, str(proc), str(root))
    assert found is not None and found.read() == Use(1.5, 70, 90, None, None)
    shutil.rmtree(root / "memory")
    assert found.read() == Use(1.5, None, None, None, None)


def test_cgroup_v1_sums_storage_of_all_devices(tmp_path: Path, proc: Path) -> None:
    (proc / "self" / "cgroup").write_text("2:blkio:/a/b\n")
    text = "8:0 Read 5\n8:0 Write 6\n8:0 Total 11\n8:16 Read 1\n8:16 Write 0\nTotal 12\n"
    group(tmp_path / "cgroup/blkio/a/b", [10], blkio__throttle__io_service_bytes=text)
    found = find_own({10}, str(proc), str(tmp_path / "cgroup"))
    assert found is not None and found.read() == Use(None, None, None, 6, 6)


def process(proc: Path, pid: int, cpu_ticks: int, pages: int, read: int) -> Process:
    place = proc / str(pid)
    (place / "ns").mkdir(parents=True, exist_ok=True)
    fields = ["S", "1", "1", "1", *["0"] * 7, str(cpu_ticks), "0", "0", "0", *["0"] * 10]
    (place / "stat").write_text(f"{pid} (a) b)) {' '.join(fields)}\n")
    (place / "statm").write_text(f"900 {pages} 1 1 0 1 0\n")
    (place / "io").write_text(f"rchar: 9\nread_bytes: {read}\nwrite_bytes: 0\ncancelled_write_bytes: 5\n")
    return Process(pid, "S", 1, 10, 10, 0)


def test_learner_usage_sums_processes_and_never_decreases(proc: Path) -> None:
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    table = {10: process(proc, 10, 3 * ticks, 2, 4), 11: replace(process(proc, 11, 2 * ticks, 1, 6), parent=10)}
    trees = ProcessUsage(str(proc))
    assert trees.read({1: 10}, table) == {"1": Use(5.0, 3 * page, None, 10, 0)}
    shutil.rmtree(proc / "11")
    assert trees.read({1: 10}, {10: table[10]}) == {"1": Use(5.0, 2 * page, None, 10, 0)}
    assert trees.read({}, {}) == {}


def test_learner_traffic_is_read_from_own_network_namespace(proc: Path) -> None:
    process(proc, 10, 0, 0, 0)
    (proc / "self" / "ns").mkdir()
    (proc / "self" / "ns" / "net").symlink_to("net:[1]")
    (proc / "10" / "ns" / "net").symlink_to("net:[2]")
    (proc / "10" / "net").mkdir()
    header = "Inter-|   Receive\n face |bytes\n"
    counters = {"lo": (99, 99), "eth0": (70, 8), "ib0": (1, 2)}
    lines = "".join(f"{name:>6}: {to} 1 0 0 0 0 0 0 {of} 1 0 0 0 0 0 0\n" for name, (to, of) in counters.items())
    (proc / "10" / "net" / "dev").write_text(header + lines)
    assert ProcessUsage(str(proc)).traffic(10) == ("job", 71, 10)
    assert ProcessUsage(str(proc)).traffic(11) is None


def compiled(library: Path, text: str) -> str:
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, "-x", "c", "-"], input=text, text=True, check=True)
    return str(library)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("nvml")
    return compiled(place / "libnvidia-ml.so.1", NVML)


def test_gpu_usage_reads_devices_by_index_and_uuid(library: str) -> None:
    gib = 1024**3
    found = Gpus({1: "0,1", 2: "GPU-a1,7"}, library).read()
    assert found[:2] == (GpuUse("0", 1, 0.41, 8 * gib, 32 * gib), GpuUse("1", 1, 0.42, 16 * gib, 32 * gib))
    assert found[2:] == (GpuUse("GPU-a1", 2, None, 72 * gib, 32 * gib),)


def test_gpu_usage_is_disabled_without_driver_or_devices(library: str, tmp_path: Path) -> None:
    gpus = Gpus({1: "0"}, str(tmp_path / "none.so"))
    assert [gpus.is_available, gpus.read(), gpus.is_available] == [True, (), False]
    assert not Gpus({1: "", 2: ""}, library).is_available
    other = compiled(tmp_path / "other.so", "int nvmlInit(void) { return 0; }\n")
    assert Gpus({1: "0"}, other).read() == ()


def test_usage_sampler_writes_samples_that_can_be_decoded(tmp_path: Path, library: str) -> None:
    path = tmp_path / "usage-0.jsonl"
    sampler = Sampler(str(path), Gpus({1: "1"}, library))
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as learner:
        sampler.take({1: learner.pid})
        learner.kill()
    sampler.take({})
    first, last = (decode_sample(line) for line in path.read_text().splitlines())
    assert first is not None and last is not None and first.learners["1"].memory_bytes
    assert [gpu.used for gpu in first.gpus] == [0.42] and last.learners == {}
    assert (first.network, last.network) == ("node", "node") and last.received_bytes == first.received_bytes
    assert decode_sample("{}") is None and decode_sample("x") is None
    assert encode_sample(UsageSample(1.0, "n")) == '{"at":1.0,"host":"n"}\n'


def test_usage_sampler_limits_sample_count_and_file_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pause_after(3600.0) == EVERY_S
    at = count = 0.0
    while at < 30 * 86400:
        at, count = at + pause_after(at), count + 1
    assert count < 15_000
    path = tmp_path / "usage-0.jsonl"
    monkeypatch.setattr("ffdl_batch.controller.metrics.monitor.MAX_BYTES", 10)
    sampler = Sampler(str(path), Gpus({}))
    sampler.take({})
    sampler.take({})
    assert path.read_text().count("\n") == 1
