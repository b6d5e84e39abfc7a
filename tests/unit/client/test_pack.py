"""Packing a model: the same tree gives the same bytes, and what cannot be sent is refused with its name."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffdl_batch.client.errors import InputUnusable
from ffdl_batch.client.submissions.model_archive import open_model

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..")
)
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map(tuple), st.tuples(st.binary(max_size=64), st.booleans()), max_size=6
)
Tree = dict[tuple[str, ...], tuple[bytes, bool]]


def write_tree(root: Path, tree: Tree, order: int) -> Tree:
    """Make the files in one of two orders; a name that is both file and directory loses."""
    written: Tree = {}
    for place, (data, executable) in sorted(tree.items(), reverse=bool(order)):
        if any(place[:n] in tree for n in range(1, len(place))):
            continue
        target = root.joinpath(*place)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError:  # a name that is too long in bytes for this file system
            continue
        target.chmod(0o750 if executable else 0o640)
        os.utime(target, (order + 1, order + 1))
        written[place] = (data, executable)
    return written


@settings(max_examples=40, deadline=None)
@given(TREES)
def test_open_model_packs_equal_trees_to_equal_digests(tree: Tree) -> None:
    digests = []
    for order in (0, 1):
        with tempfile.TemporaryDirectory() as directory:
            written = write_tree(Path(directory), tree, order)
            if not written:
                return
            with open_model(Path(directory)) as archive, zipfile.ZipFile(archive.file) as packed:
                digests.append(archive.digest)
                assert archive.size > 0
                files = {name: packed.read(name) for name in packed.namelist() if not name.endswith("/")}
                assert files == {"/".join(place): data for place, (data, _) in written.items()}
                for place, (_, executable) in written.items():
                    mode = packed.getinfo("/".join(place)).external_attr >> 16
                    assert stat.S_IMODE(mode) == (0o755 if executable else 0o644)
    assert digests[0] == digests[1]


def names_in(model: Path) -> list[str]:
    with open_model(model) as archive, zipfile.ZipFile(archive.file) as packed:
        assert packed.testzip() is None
        return packed.namelist()


def test_open_model_digest_depends_on_content_and_execute_bit(model: Path) -> None:
    def digest() -> str:
        with open_model(model) as archive:
            return archive.digest

    first = digest()
    (model / "train.py").chmod(0o755)
    second = digest()
    (model / "train.py").write_text("other\n")
    assert len({first, second, digest()}) == 3


def test_open_model_keeps_empty_directories_and_follows_links(model: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(model)
    assert names_in(tmp_path / "link") == ["train.py"]
    (model / "data" / "empty").mkdir(parents=True)
    assert names_in(model) == ["data/empty/", "train.py"]
    (model / "lib").mkdir()
    (model / "lib" / "net.py").write_text("net\n")
    (model / "alias.py").symlink_to("train.py")
    (model / "copy").symlink_to("lib")
    assert names_in(model) == ["alias.py", "copy/net.py", "data/empty/", "lib/net.py", "train.py"]


def refusal_of(model: Path) -> InputUnusable:
    with pytest.raises(InputUnusable) as caught, open_model(model):
        pass
    return caught.value


@pytest.mark.parametrize(
    ("target", "said", "code"),
    [
        ("../secret", "leaves the model's directory", 78),
        ("../model2/f", "leaves the model's directory", 78),
        (".", "leads back to itself", 78),
        ("nothing", "leads nowhere", 66),
        ("link", "leads nowhere", 66),
    ],
    ids=["file outside", "sibling with the same prefix", "loop", "dangling", "itself"],
)
def test_open_model_rejects_link_that_leaves_tree_or_leads_nowhere(
    model: Path, tmp_path: Path, target: str, said: str, code: int
) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "model2").mkdir()
    (tmp_path / "model2" / "f").write_text("s")
    (model / "link").symlink_to(tmp_path / target[3:] if target.endswith("/f") else target)
    error = refusal_of(model)
    assert (error.problem.exit_code, said in str(error)) == (code, True)


def test_open_model_rejects_sockets_pipes_and_names_that_are_not_utf8(short_dir: Path) -> None:
    (short_dir / "train.py").write_text("x")
    os.mkfifo(short_dir / "pipe")
    assert "is a named pipe" in str(refusal_of(short_dir))
    (short_dir / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_dir / "sock"))
        assert "is a socket" in str(refusal_of(short_dir))
    (short_dir / "sock").unlink()
    (short_dir / os.fsdecode(b"caf\xe9.py")).write_text("x")
    assert "is not UTF-8" in str(refusal_of(short_dir))


def test_open_model_rejects_missing_empty_and_special_models(tmp_path: Path) -> None:
    missing = refusal_of(tmp_path / "nothing")
    assert (missing.problem.exit_code, "there is no such file or directory" in str(missing)) == (66, True)
    zipfile.ZipFile(tmp_path / "model.zip", "w").close()
    assert "has no files" in str(refusal_of(tmp_path / "model.zip"))
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    empty = refusal_of(tmp_path / "empty")
    assert (empty.problem.exit_code, "holds no file" in str(empty)) == (78, True)
    assert "neither a directory nor a zip archive" in str(refusal_of(Path("/dev/null")))


def test_open_model_names_unreadable_file(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: os.PathLike[str] | str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if str(path).endswith("train.py"):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)  # root may read everything, so permissions alone prove nothing
    error = refusal_of(model)
    assert "train.py: Permission denied" in str(error)
    assert error.problem.exit_code == 66


def test_open_model_sends_zip_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("train.py", "x")
    with open_model(path) as archive:
        archive.file.seek(0)
        assert archive.file.read() == path.read_bytes()


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("train.py", lambda data: b"PK\x03\x04 torn", "is not a readable zip file"),
        ("train.py", lambda data: data.replace(b"print", b"damag"), "entry 'train.py' of model {} is damaged: Bad CRC"),
        ("../train.py", lambda data: data, "entry '../train.py' of model {} points outside the archive"),
    ],
)
def test_open_model_rejects_damaged_or_hostile_zip(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes], words: str
) -> None:
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(name, "print(1)")
    path.write_bytes(change(path.read_bytes()))
    error = refusal_of(path)
    assert words.format(path) in str(error)
    assert error.problem.exit_code == 78


def write(model: Path, *names: str) -> None:
    for name in names:
        path = model / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")


def test_open_model_leaves_out_environments_caches_and_repositories(model: Path) -> None:
    write(model, ".git/config", "venv/bin/python", ".venv/pyvenv.cfg", "lib/__pycache__/net.pyc", "lib/net.py")
    (model / "lib" / "venv").symlink_to("/usr")
    write(model, "lib/sub/.git", "lib/gitlab.py", "environment/venv.py")
    assert names_in(model) == ["environment/venv.py", "lib/gitlab.py", "lib/net.py", "train.py"]
    with open_model(model) as archive:
        assert archive.left_out == (".git/", ".venv/", "lib/__pycache__/", "lib/sub/.git", "lib/venv/", "venv/")


@pytest.mark.parametrize(
    ("rules", "sent"),
    [
        ("*.ckpt\n", ["a/b/c.py", "a/data/x", "data/x", "data/keep/y", "train.py"]),
        ("data/\n", ["a/b/c.py", "a/z.ckpt", "train.py"]),
        ("/data\n", ["a/b/c.py", "a/data/x", "a/z.ckpt", "train.py"]),
        ("data/*\n!data/keep\n", ["a/b/c.py", "a/data/x", "a/z.ckpt", "data/keep/y", "train.py"]),
        ("data/\n!data/keep/y\n", ["a/b/c.py", "a/z.ckpt", "train.py"]),
        ("a/**/c.py\n# data\n\n", ["a/data/x", "a/z.ckpt", "data/keep/y", "data/x", "train.py"]),
        ("/*\n!/a\n!/train.py\n", ["a/b/c.py", "a/data/x", "a/z.ckpt", "train.py"]),
        ("!venv\n/a\n/data\n", ["train.py", "venv/mine.py"]),
        ("\ufeffdata/\r\n", ["a/b/c.py", "a/z.ckpt", "train.py"]),
    ],
)
def test_ffdlignore_has_syntax_of_gitignore(model: Path, rules: str, sent: list[str]) -> None:
    write(model, "data/x", "data/keep/y", "a/data/x", "a/b/c.py", "a/z.ckpt", "venv/mine.py")
    (model / ".ffdlignore").write_bytes(rules.encode())
    assert names_in(model) == sorted([".ffdlignore", *sent] if rules[:2] != "/*" else sent)


def test_ffdlignore_agrees_with_git(model: Path) -> None:
    write(model, "data/x", "data/keep/y", "a/data/x", "a/b/c.py", "a/z.ckpt", "b c/d", "a/#x", "a/log.txt", "log.txt")
    rules = "data/*\n!data/keep/\n*.ckpt\nb\\ c/\n\\#x\n/log.txt\na/**/c.py\n"
    (model / ".gitignore").write_text(rules)
    (model / ".ffdlignore").write_text(rules)
    subprocess.run(["git", "init", "-q", model], check=True)
    listed = ["git", "-C", str(model), "ls-files", "-z", "--others", "--exclude-standard"]
    files = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
    assert names_in(model) == sorted(name for name in files if name)


@pytest.mark.parametrize("rules", [b"train.py\n!\n", b"[z-a]\n", b"\xff\n", b"#" * (1 << 20) + b"\n"])
def test_unusable_ffdlignore_is_refused_with_its_name(model: Path, rules: bytes) -> None:
    (model / ".ffdlignore").write_bytes(rules)
    refusal = refusal_of(model)
    assert (refusal.problem.exit_code, str(model / ".ffdlignore") in str(refusal)) == (78, True)


def test_model_of_which_everything_is_left_out_is_refused(model: Path) -> None:
    (model / ".ffdlignore").write_text("*\n")
    assert "holds no file besides those that are left out (.ffdlignore)" in str(refusal_of(model))


def test_large_model_gets_warning_that_names_largest_entries(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(model, "data/a", "data/b", "small")
    for name in ("data/a", "data/b"):
        with (model / name).open("wb") as file:
            file.truncate(20 * 1000**2)
    with open_model(model) as archive:
        assert archive.warning(model) == ""
    (model / "more").write_bytes(bytes(10 * 1000**2))
    with open_model(model) as archive:
        warning = archive.warning(model)
    assert f"model {model} has 47.7 MiB (the largest: 'data/' 38.1 MiB, 'more' 9.54 MiB, 'train.py'" in warning
    assert ".ffdlignore" in warning
