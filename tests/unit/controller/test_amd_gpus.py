"""What AMD GPUs do, read from a program that answers as rocm-smi does.

The format is that of ``rocm-smi --json`` in ROCm 5 and 6: one object for each card, numbers as strings, and warnings
before them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ffdl_batch.controller.metrics.amd_gpus import OPTIONS, AmdGpus, find_program, open_addresses, parse_cards
from ffdl_batch.controller.metrics.resource_usage import Gpus
from ffdl_batch.domain.metrics.usage import GpuUse

WARNING = "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n"
GIB = 1024**3


def card(number: int, use: str = "") -> dict[str, str]:
    """The card with this number, whose PCI address is lower than that of the card before it."""
    return {
        "GPU use (%)": use or str(10 * (number + 1)),
        "VRAM Total Memory (B)": str(64 * GIB),
        "VRAM Total Used Memory (B)": str(number * GIB),
        "PCI Bus": f"0000:{0xC9 - number:02X}:00.0",
        "Unique ID": f"0x592c190172fd5d4{number}",
    }


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """rocm-smi of a node with 3 GPUs. It notes how it was called."""
    cards = {f"card{number}": card(number, "N/A" if number == 2 else "") for number in range(3)}
    answer = WARNING + json.dumps({**cards, "system": {"Driver version": "6.7.0"}})
    (tmp_path / "answer").write_text(answer)
    path = tmp_path / "bin" / "rocm-smi"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\ncat {tmp_path}/answer\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def devices(tmp_path: Path) -> tuple[str, str]:
    """/dev/dri and /sys/class/drm of a job that may open the cards 1 and 0."""
    dri, drm = tmp_path / "dri", tmp_path / "drm"
    dri.mkdir()
    for minor, number in ((128, 1), (129, 0)):
        bus = tmp_path / "pci" / f"0000:{0xC9 - number:02x}:00.0"
        bus.mkdir(parents=True)
        (drm / f"renderD{minor}").mkdir(parents=True)
        (drm / f"renderD{minor}" / "device").symlink_to(bus)
        (dri / f"renderD{minor}").touch()
    (dri / "card0").touch()
    return str(dri), str(drm)


def test_amd_usage_numbers_gpus_of_the_job_by_pci_address(program: Path, devices: tuple[str, str]) -> None:
    assert open_addresses(*devices) == {"0000:c8:00.0", "0000:c9:00.0"}
    found = AmdGpus([("0", 1), ("1", 2)], str(program), *devices).read()
    assert found == (GpuUse("0", 1, 0.2, GIB, 64 * GIB), GpuUse("1", 2, 0.1, 0, 64 * GIB))
    assert (program.parent.parent / "asked").read_text().split() == list(OPTIONS)


def test_amd_usage_counts_all_gpus_if_numbers_are_the_nodes(program: Path, devices: tuple[str, str]) -> None:
    found = AmdGpus([("1", 1), ("2", 1), ("7", 1)], str(program), *devices).read()
    assert [(gpu.name, gpu.memory_bytes) for gpu in found] == [("1", GIB), ("2", 0)]


def test_amd_usage_finds_gpu_by_unique_id_and_leaves_unknown_numbers_out(program: Path) -> None:
    [found] = AmdGpus([("GPU-592c190172fd5d42", 3), ("GPU-1", 3)], str(program), "/none").read()
    assert found == GpuUse("GPU-592c190172fd5d42", 3, None, 2 * GIB, 64 * GIB)


@pytest.mark.parametrize("answer", ["", "No AMD GPUs specified\n", "{", "[]", '{"card0": 3, "cardx": {}}'])
def test_amd_usage_is_empty_if_answer_has_no_gpus(program: Path, answer: str) -> None:
    (program.parent.parent / "answer").write_text(answer)
    assert parse_cards(answer) == []
    assert AmdGpus([("0", 1)], str(program)).read() == ()
    program.unlink()
    assert AmdGpus([("0", 1)], str(program)).read() == ()


def test_gpu_usage_asks_rocm_smi_if_nvidia_library_is_missing(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert find_program() == str(program)
    gpus = Gpus({1: "0,1,2"}, str(tmp_path / "none.so"))
    assert [gpu.memory_bytes for gpu in gpus.read()] == [2 * GIB, GIB, 0]
    assert gpus.is_available
