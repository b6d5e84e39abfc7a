"""What a node lets learners open against what they are told: plain files stand for devices, and errors are played."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ffdl_batch.attempt.phase_files import Ended, PhaseFailed
from ffdl_batch.controller.node.devices import Found, equip, inspect, look
from ffdl_batch.domain.launch.devices import Devices

CUDA, STEP = "CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS"


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A /dev with four NVIDIA GPUs and three other accelerators."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "npu0", "npu1", "npu10"):
        (tmp_path / name).touch()
    return tmp_path


def wanted(dev: Path, gpus: int = 0, *, shared: bool = False, learners: int = 1, **each: int) -> Devices:
    amd, intel = (f"{dev}/kfd", f"{dev}/renderD*"), (f"{dev}/renderD*",)
    return Devices(
        gpus=gpus, shared=shared, each=each, learners=learners,
        gpu_files={"nvidia": (f"{dev}/nvidia[0-9]*",), "amd": amd, "intel": intel},
        gres_files={"npu": (f"{dev}/npu[0-9]*",)}, options={"nvidia": ("--nv",), "amd": ("--rocm",), "intel": ()},
    )  # fmt: skip


def hold(want: Devices, denied: Sequence[str] = (), said: str = "EPERM", **environ: str) -> Found:
    """`denied` are the names of files that cannot be opened; the others have no driver."""

    def opened(paths: Sequence[str]) -> Mapping[str, str]:
        return {path: said if Path(path).name in denied else "ENXIO" for path in paths}

    return inspect(want, environ, CUDA, opened)


def names(paths: Sequence[str]) -> list[str]:
    return [Path(path).name for path in paths]


def nvidia(numbers: str) -> list[str]:
    return [f"nvidia{number}" for number in numbers]


def refusal(want: Devices, denied: Sequence[str] = (), said: str = "EPERM", **environ: str) -> str:
    with pytest.raises(PhaseFailed) as error:
        hold(want, denied, said, **environ)
    assert error.value.code == "S108" and str(error.value).startswith(f"node {os.uname().nodename} ")
    return str(error.value)


@pytest.mark.parametrize(
    ("denied", "error", "environ"),
    [
        ("01", "EPERM", {CUDA: "0,1", STEP: "2,3"}),  # confined learners count from 0
        ("01", "EPERM", {CUDA: "0,1"}),
        ("01", "EPERM", {CUDA: "0,1", STEP: "0,1"}),  # the files are in another order than the PCI bus
        ("01", "EPERM", {CUDA: "GPU-5f1e,GPU-77aa"}),
        ("012", "EPERM", {CUDA: "MIG-5f1e,MIG-77aa"}),  # two parts of one GPU
        ("", "EPERM", {CUDA: "0,1,2,3"}),  # the whole node: nothing to confine
        ("0", "EACCES", {CUDA: "0,1,2"}),  # of a display, which nobody may open
    ],
)
def test_gpu_check_accepts_openable_files_matching_allocation(
    dev: Path, denied: str, error: str, environ: dict[str, str]
) -> None:
    told = tuple(environ[CUDA].split(","))
    found = hold(wanted(dev, len(told)), nvidia(denied), error, **environ)
    assert (found.vendor, found.assigned, found.doubts) == ("nvidia", told, ())
    assert names(found.files) == [name for name in nvidia("0123") if name not in nvidia(denied)]


@pytest.mark.parametrize(
    ("denied", "environ", "cause"),
    [
        ("", {CUDA: "1,2"}, "ConstrainDevices"),
        ("12", {CUDA: "0", STEP: "2"}, "gres.conf"),  # Slurm's numbers count from nvidia1: this is nvidia3
        ("12", {CUDA: "GPU-5f1e", STEP: "2"}, "gres.conf"),
        ("23", {CUDA: "0", STEP: "0"}, "gres.conf"),
    ],
)
def test_gpu_check_warns_about_openable_gpu_that_is_not_allocated(
    dev: Path, denied: str, environ: dict[str, str], cause: str
) -> None:
    want = wanted(dev, count := len(environ[CUDA].split(",")))
    found = hold(want, nvidia(denied), **environ)
    (doubt,) = found.doubts
    assert "nvidia0, " in doubt and [word for word in ("ConstrainDevices", "gres.conf") if word in doubt] == [cause]
    assert equip(want, found, [count], {})[0].gpus == environ[CUDA]


@pytest.mark.parametrize(
    ("told", "step", "denied"),
    [
        ("MIG-5f1e", "9", "023"),  # of nvidia1: each instance has a number of its own
        ("MIG-5f1e", "1", "123"),
        ("MIG-5f1e,MIG-77aa", "6,7", "23"),  # of two GPUs
        ("MIG-GPU-5f1e/1/0", "9", "023"),
        ("MIG-5f1e,3", "1,7", "01"),
    ],
)
def test_gpu_check_does_not_map_mig_instances_to_device_files(dev: Path, told: str, step: str, denied: str) -> None:
    found = hold(wanted(dev, told.count(",") + 1), nvidia(denied), **{CUDA: told, STEP: step})
    assert (len(found.gpus.open), found.doubts) == (4 - len(denied), ())
    said = refusal(wanted(dev, told.count(",") + 1), nvidia("0123"), **{CUDA: told, STEP: step})
    assert "lets the learners open none of" in said and "look for" not in said


TOO_FEW = "nvidia3, and the allocation has GPUs {}"
NONE = "lets the learners open none of"


@pytest.mark.parametrize(
    ("gpus", "denied", "error", "environ", "words"),
    [
        (2, "012", "EPERM", {CUDA: "0,1"}, TOO_FEW),
        (2, "012", "EPERM", {CUDA: "0,1", STEP: "2,3"}, TOO_FEW),
        (2, "012", "EPERM", {CUDA: "GPU-5f1e,GPU-77aa", STEP: "2,3"}, TOO_FEW),
        (2, "012", "EPERM", {CUDA: "MIG-5f1e,3", STEP: "1,7"}, "the allocation has"),  # a whole one beside an instance
        (1, "0123", "EACCES", {CUDA: "0"}, NONE),
        (2, "", "EPERM", {}, "but 2 were requested"),
        (2, "", "EPERM", {CUDA: ""}, "but 2 were requested"),
        (2, "", "EPERM", {CUDA: "0"}, "but 2 were requested"),
        (2, "", "EPERM", {CUDA: "NoDevFiles"}, "but 2 were requested"),
    ],
)
def test_gpu_check_rejects_fewer_gpus_than_allocated_or_requested(
    dev: Path, gpus: int, denied: str, error: str, environ: dict[str, str], words: str
) -> None:
    said = refusal(wanted(dev, gpus), nvidia(denied), error, **environ)
    assert words.format(environ.get(CUDA)) in said and "look for" not in said


def test_gpu_check_rejects_shared_gpu_that_cannot_be_opened(dev: Path) -> None:
    assert NONE in refusal(wanted(dev, 1, shared=True), nvidia("0123"), **{CUDA: "0", STEP: "3"})


def test_gpu_check_names_device_file_with_io_error_or_missing_if_it_is_known(dev: Path) -> None:
    assert f"look for {dev}/nvidia1 (EIO)" in refusal(wanted(dev, 4), nvidia("1"), "EIO", **{CUDA: "0,1,2,3"})
    (dev / "nvidia3").unlink()
    assert f"look for {dev}/nvidia3 (ENOENT)" in refusal(wanted(dev, 4), **{CUDA: "0,1,2,3"})
    assert f"look for {dev}/nvidia3 (ENOENT)" in refusal(wanted(dev, 2), nvidia("02"), **{CUDA: "0,1", STEP: "1,3"})
    assert "look for" not in refusal(wanted(dev, 2), nvidia("02"), **{CUDA: "0,1"})  # which it is nobody says


def test_gpu_check_names_driver_and_setting_without_device_files(tmp_path: Path) -> None:
    said = refusal(wanted(tmp_path, 1), **{CUDA: "0"})
    assert "no device file of a GPU" in said and "gpu_devices" in said and "load the driver" in said


def test_gpu_check_passes_allocation_through_without_patterns(dev: Path) -> None:
    unseen = Devices(gpus=2)
    found = hold(unseen, **{CUDA: "0,1"})
    assert (found.vendor, found.files) == ("", ())
    (only,) = equip(unseen, found, [2], {})
    assert (only.gpus, only.variables, only.options) == ("0,1", {CUDA: "0,1"}, ())


# ------------------------------------------------------------------------------------------------- vendors


def amd(tmp_path: Path) -> Path:
    for name in ("kfd", "renderD128", "renderD129", "renderD130"):
        (tmp_path / name).touch()
    return tmp_path


def test_learner_devices_set_rocr_and_hip_variables_for_amd(tmp_path: Path) -> None:
    """What HIP counts, it counts among those that ROCR_VISIBLE_DEVICES leaves."""
    want = wanted(amd(tmp_path), 2)
    found = hold(want, ("renderD128",), ROCR_VISIBLE_DEVICES="1,2", CUDA_VISIBLE_DEVICES="7")
    assert (found.vendor, found.assigned, names(found.files)) == ("amd", ("1", "2"), ["renderD129", "renderD130"])
    first, second = equip(want, found, [1, 1], {})
    assert first.variables == {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0", CUDA: "0"}
    assert (second.variables["ROCR_VISIBLE_DEVICES"], second.options) == ("2", ("--rocm",))
    assert "lets the learners open" in refusal(want, ("renderD128", "renderD129"), ROCR_VISIBLE_DEVICES="1,2")


def test_gpu_check_warns_about_extra_openable_amd_render_nodes(tmp_path: Path) -> None:
    found = hold(wanted(amd(tmp_path), 1), ("renderD129",), ROCR_VISIBLE_DEVICES="0")
    assert len(found.doubts) == 1 and "gres.conf" in found.doubts[0]


def test_learner_devices_set_affinity_mask_and_mounts_for_intel(tmp_path: Path) -> None:
    (tmp_path / "renderD128").touch()
    want = wanted(tmp_path, 1)
    (only,) = equip(want, hold(want, ZE_AFFINITY_MASK="0"), [1], {})
    assert only.variables == {CUDA: "", "ZE_AFFINITY_MASK": "0"}
    path = f"{tmp_path}/renderD128"
    assert only.options == ("--mount", f"type=bind,source={path},destination={path}")


def test_gpu_check_selects_vendor_with_openable_device_files(tmp_path: Path) -> None:
    (amd(tmp_path) / "nvidia0").touch()
    assert hold(wanted(tmp_path, 3), ("nvidia0",), CUDA_VISIBLE_DEVICES="0,1,2").vendor == "amd"
    assert hold(wanted(tmp_path, 1), CUDA_VISIBLE_DEVICES="0").vendor == "nvidia"


def test_gpu_check_ignores_display_gpu_of_another_vendor(tmp_path: Path) -> None:
    (amd(tmp_path) / "nvidia0").touch()
    found = hold(wanted(tmp_path, 2), ("renderD128",), ROCR_VISIBLE_DEVICES="0,1")
    assert (found.vendor, found.assigned, found.doubts) == ("amd", ("0", "1"), ())
    assert "got 0 GPUs in CUDA_VISIBLE_DEVICES" in refusal(wanted(tmp_path, 2))


# ------------------------------------------------------------------------------------------- the learners' parts


def test_learner_devices_split_node_gpus_in_order(dev: Path) -> None:
    want = wanted(dev, 3)
    parts = equip(want, hold(want, ("nvidia0",), **{CUDA: "0,1,2"}), [1, 0, 2], {})
    assert [part.gpus for part in parts] == ["0", "", "1,2"]
    assert [part.options for part in parts] == [("--nv",), (), ("--nv",)]
    assert parts[1].variables == {CUDA: ""}


def test_learner_devices_give_same_gpu_to_learners_with_shares(dev: Path) -> None:
    want = wanted(dev, 1, shared=True)
    found = hold(want, ("nvidia0", "nvidia1", "nvidia2"), **{CUDA: "0", STEP: "3"})
    environ = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}
    first, second, without = equip(want, found, [1, 1, 0], environ)
    assert (first, first.gpus, without.gpus) == (second, "0", "")
    assert first.variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert first.options == ("--nv", "--mount", "type=bind,source=/run/mps,destination=/run/mps")
    assert without.variables == {CUDA: ""}
    assert equip(want, found, [1], {})[0].variables == {CUDA: "0"}


def test_learner_devices_split_accelerators_by_device_file(dev: Path) -> None:
    want = wanted(dev, learners=2, npu=1)
    found = hold(want, ("npu1",))
    assert names(found.files) == ["npu0", "npu10"]
    first, second = equip(want, found, [0, 0], {})
    assert names([first.variables["FFDL_DEVICES_NPU"], second.variables["FFDL_DEVICES_NPU"]]) == ["npu0", "npu10"]
    assert second.options == ("--mount", f"type=bind,source={dev}/npu10,destination={dev}/npu10")


def test_accelerator_check_rejects_count_mismatch_or_missing_files(dev: Path) -> None:
    assert "the allocation has npu:2" in refusal(wanted(dev, npu=2), ("npu0", "npu1"))
    for name in ("npu0", "npu1", "npu10"):
        (dev / name).unlink()
    assert "no device file of npu" in refusal(wanted(dev, npu=1))


@pytest.mark.parametrize(("denied", "why"), [((), "ConstrainDevices"), (("npu1",), "gres.conf")])
def test_accelerator_check_warns_and_passes_all_files_if_too_many_open(
    dev: Path, denied: tuple[str, ...], why: str
) -> None:
    want = wanted(dev, npu=1)
    found = hold(want, denied)
    assert len(found.doubts) == 1 and why in found.doubts[0]
    (only,) = equip(want, found, [0], {})
    assert len(only.variables["FFDL_DEVICES_NPU"].split(",")) == 3 - len(denied)


# -------------------------------------------------------------------------------------------------- looking


def test_device_open_check_reports_errno_name_per_file(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    paths = [str(tmp_path / name) for name in ("there", "pipe", "none", "loop")]
    calls: list[int] = []
    assert look(paths, lambda: calls.append(1)) == dict(zip(paths, ("", "", "ENOENT", "ELOOP"), strict=True))
    assert look([], lambda: None) == {}


def test_device_open_check_names_file_with_hanging_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, now = tmp_path / "asked", [0.0]

    def hang(path: str) -> str:
        """In the child, which has told of /a by then."""
        if path == "/b":
            asked.touch()
            time.sleep(600)
        return ""

    def go_on() -> None:
        now[0] = 61.0 if asked.exists() else 0.0

    with monkeypatch.context() as patch:
        patch.setattr("ffdl_batch.controller.node.devices._try", hang)
        patch.setattr("ffdl_batch.controller.node.devices.time.monotonic", lambda: now[0])
        with pytest.raises(PhaseFailed, match="did not open /b within 60 s") as error:
            look(["/a", "/b"], go_on, limit_s=60.0)
    assert error.value.code == "S108"


def test_device_open_check_stops_waiting_when_attempt_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffdl_batch.controller.node.devices._try", lambda _: time.sleep(600))

    def ended() -> None:
        raise Ended("term", "told to end")

    with pytest.raises(Ended):
        look(["/b"], ended)
