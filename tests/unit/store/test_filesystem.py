"""Network file systems are told from local ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffdl_batch.host import filesystem
from ffdl_batch.host.filesystem import filesystem_type, is_network

TABLE = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /home rw,relatime shared:2 - autofs auto.home rw,fd=5
31 30 0:40 / /home rw,relatime - nfs4 server:/home rw,vers=4.2
32 31 0:41 / /home/scratch\\040disk rw - lustre mgs@tcp:/scratch rw,flock
33 22 0:42 / /mnt/fuse rw master:3 propagate_from:2 - fuse.sshfs user@host: rw
34 22 0:43 / /tmp rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/homely/ada", "ext4"),
        ("/home", "nfs4"),
        ("/home/ada/.local", "nfs4"),
        ("/home/scratch disk/ada", "lustre"),
        ("/home/scratch disks", "nfs4"),
        ("/mnt/fuse/x", "fuse.sshfs"),
        ("/tmp/x", "tmpfs"),
    ],
)
def test_filesystem_type_uses_deepest_and_last_mount(path: str, kind: str) -> None:
    assert filesystem_type(TABLE, path) == kind


def test_filesystem_type_returns_empty_text_for_broken_mount_table() -> None:
    assert filesystem_type("", "/x") == ""
    assert filesystem_type("nonsense\n1 2 3 - ext4\n", "/x") == ""


@pytest.mark.parametrize("kind", ["nfs4", "9p", "fuse.sshfs", "lustre", "unheardof"])
def test_is_network_is_true_for_any_type_not_known_as_local(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"1 1 0:1 / / rw - {kind} source rw\n")
    monkeypatch.setattr(filesystem, "_MOUNTINFO", table)
    assert is_network(tmp_path)
    table.write_text("1 1 0:1 / / rw - xfs source rw\n")
    assert not is_network(tmp_path)


def test_is_network_follows_links_and_is_true_without_mount_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "server"
    target.mkdir()
    link = tmp_path / "link"
    link.symlink_to(target)
    table = tmp_path / "mountinfo"
    table.write_text(f"1 1 0:1 / / rw - ext4 a rw\n2 1 0:2 / {target.resolve()} rw - nfs b rw\n")
    monkeypatch.setattr(filesystem, "_MOUNTINFO", table)
    assert is_network(link)
    assert not is_network(tmp_path)
    table.unlink()
    assert is_network(tmp_path)
