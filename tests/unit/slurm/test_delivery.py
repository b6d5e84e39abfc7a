"""Where the controller's code is, as the nodes see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ffdl_slurm.delivery import deliver_controller, file_system

MOUNTS = """22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime shared:5 - nfs4 filer:/home rw
31 22 0:41 / /with\\040blank rw - lustre mgs:/x rw
"""


def test_file_systems_by_their_longest_mount_point() -> None:
    assert file_system("/home/alice/x", MOUNTS) == "nfs4"
    assert file_system("/homework", MOUNTS) == "ext4"
    assert file_system("/with blank/y", MOUNTS) == "lustre"
    assert file_system("/x", "") == ""


def test_a_configured_interpreter_gets_one_file_that_it_can_run(tmp_path: Path) -> None:
    first = deliver_controller(str(tmp_path), "/opt/python3")
    assert first == deliver_controller(str(tmp_path), "/opt/python3")
    assert first.python == "/opt/python3"
    archives = [path.name for path in (tmp_path / "controller").iterdir()]
    assert len(archives) == 1 and archives[0].endswith(".pyz")
    ran = subprocess.run([sys.executable, *first.controller, "--help"], capture_output=True, text=True, check=True)
    assert "execute an attempt" in ran.stdout
