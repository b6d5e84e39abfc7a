"""Archives, trees and logs as users make them."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffdl_batch.attempt.file_writer import make_private, write_cell
from ffdl_batch.attempt.log_tail import LINE_CHARACTERS, last_lines, tail
from ffdl_batch.attempt.reader import read_object
from ffdl_batch.controller.data.model_unpacking import ModelRefused, unpack
from ffdl_batch.controller.data.tree_copy import copy_tree
from ffdl_batch.domain.file_format import FORMAT


def archive(path: Path, *names: str | zipfile.ZipInfo, text: str = "x") -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name in names:
            opened.writestr(name, text)
    return str(path)


def test_model_unpack_makes_all_files_executable(tmp_path: Path) -> None:
    kept = zipfile.ZipInfo("dir/kept.sh")
    kept.external_attr = (stat.S_IFREG | 0o640) << 16
    target = tmp_path / "model"
    assert unpack(archive(tmp_path / "m.zip", "a.py", kept), str(target)) == 2
    assert (target / "a.py").stat().st_mode & 0o777 == 0o700
    assert (target / "dir" / "kept.sh").stat().st_mode & 0o777 == 0o740


def test_model_unpack_succeeds_twice_on_same_target(tmp_path: Path) -> None:
    path = archive(tmp_path / "m.zip", "a", "b/c")
    assert [unpack(path, str(tmp_path / "t")) for _ in range(2)] == [2, 2]


def test_model_unpack_rejects_hostile_archive_before_writing(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"entry '\.\./x' of the model archive .*/m\.zip points outside"):
        unpack(archive(tmp_path / "m.zip", "good", "../x"), str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


def test_model_unpack_rejects_file_that_is_not_zip(tmp_path: Path) -> None:
    (tmp_path / "m.zip").write_text("hello")
    with pytest.raises(ModelRefused, match=r"m\.zip is not a readable zip"):
        unpack(str(tmp_path / "m.zip"), str(tmp_path / "t"))


def test_model_unpack_rejects_entry_damaged_after_submission(tmp_path: Path) -> None:
    path = Path(archive(tmp_path / "m.zip", "a.py", text="x" * 99))
    path.write_bytes(path.read_bytes().replace(b"a.py", b"a.py\xff\xff", 1))
    with pytest.raises(ModelRefused, match=r"entry 'a.py' of the model archive .*/m\.zip is damaged"):
        unpack(str(path), str(tmp_path / "t"))


def test_model_unpack_converts_windows_names_and_skips_model_directory(tmp_path: Path) -> None:
    unpack(archive(tmp_path / "m.zip", "./", "package\\a.py", text=""), str(tmp_path / "t"))
    assert (tmp_path / "t" / "package" / "a.py").is_file()


def make_tree(root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("1")
    (root / "link").symlink_to("a/b/file")
    os.mkfifo(root / "pipe")
    (root / "empty").mkdir()


@pytest.mark.parametrize("link", [True, False])
def test_copy_tree_copies_tree_and_updates_it_on_second_pass(tmp_path: Path, link: bool) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    make_tree(source)
    assert copy_tree(str(source), str(target), link=link) == 2
    (source / "new").write_text("2")
    (source / "a" / "b" / "file").write_text("changed")
    copy_tree(str(source), str(target), link=link)
    assert (target / "a" / "b" / "file").read_text() == "changed"
    assert ((target / "new").read_text(), (target / "link").readlink()) == ("2", Path("a/b/file"))
    assert sorted(p.name for p in target.iterdir()) == ["a", "empty", "link", "new"]


def test_write_cell_replaces_file_by_json_with_its_format(tmp_path: Path) -> None:
    path = str(tmp_path / "cell")
    write_cell(path, {"a": "ü"})
    assert read_object(path) == {"a": "ü", "format": FORMAT}
    assert [p.name for p in tmp_path.iterdir()] == ["cell"]


def test_make_private_restricts_directory_and_rejects_symlink(tmp_path: Path) -> None:
    make_private(str(tmp_path / "d"))
    (tmp_path / "d").chmod(0o755)
    make_private(str(tmp_path / "d"))
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    (tmp_path / "l").symlink_to(tmp_path / "d")
    with pytest.raises(PermissionError, match="not a directory of ours"):
        make_private(str(tmp_path / "l"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ()),
        (b"a\nb", ("a", "b")),
        (b"10%\r20%\r30%\r\nend\r\n", ("30%", "end")),
        (b"\x1b[31mred\x1b[0m\x1b]0;title\x07!\n", ("red!",)),
        (b"\x00\x08\xff\n", ("\ufffd\ufffd\ufffd",)),
        (b"x\xe2\x80\xaey\n", ("x\ufffdy",)),
    ],
)
def test_last_lines_strips_escapes_and_replaces_control_characters(data: bytes, expected: tuple[str, ...]) -> None:
    assert last_lines(data) == expected


def test_log_tail_limits_lines_and_line_length(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 200_000 + b"\n" + b"end\n" * 30)
    lines = tail(str(tmp_path / "log"))
    assert (len(lines), lines[-1]) == (20, "end")
    (tmp_path / "log").write_bytes(b"y" * 200_000)
    assert len(tail(str(tmp_path / "log"))[0]) == LINE_CHARACTERS
    assert tail(str(tmp_path / "none")) == ()


@given(st.binary(max_size=300))
def test_last_lines_contains_no_control_characters_for_any_bytes(data: bytes) -> None:
    for line in last_lines(data):
        assert not any(ord(c) < 32 and c != "\t" for c in line)
