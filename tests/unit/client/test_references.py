"""Tests which references a manifest may have, and which files are never read."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from ffdl_batch.client import AllowedReferences, InputUnusable
from ffdl_batch.client.submissions.manifest_source import ManifestText, find_references, read_manifest
from ffdl_batch.domain.exit_codes import ExitCode
from ffdl_batch.manifest import ManifestSource, parse_manifest

HEAD = "name: x\nframework: {name: custom, version: x, command: y}\n"
TEXT = "name: x\nbatch:\n  secrets: {{OTHER: '${{env:HOME}}', TOKEN: \"${{file:{path}}}\"}}\n"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Make a directory `job` for manifests, with a token, and a key outside it."""
    (tmp_path / "job" / "sub").mkdir(parents=True)
    (tmp_path / "job" / "sub" / "token").write_text("planted-token")
    (tmp_path / "key").write_text("planted-key")
    (tmp_path / "job" / "link").symlink_to("../key")
    (tmp_path / "job" / "up").symlink_to("..")
    (tmp_path / "job" / "inner").symlink_to("sub")
    return tmp_path


def manifest(world: Path, path: str) -> ManifestText:
    at = world / "job" / "m.yml"
    at.write_text(TEXT.format(path=path.format(world=world)))
    return read_manifest(at)


@pytest.mark.parametrize("path", ["sub/token", "./sub/../sub/token", "inner/token", "{world}/job/sub/token"])
def test_find_references_reads_files_in_directory_of_manifest(world: Path, path: str) -> None:
    made = manifest(world, path)
    assert find_references(made, {"HOME": "/h"}) == {
        "env:HOME": "/h", f"file:{path.format(world=world)}": "planted-token",
    }  # fmt: skip


@pytest.mark.parametrize(
    "path", ["../key", "{world}/key", "link", "up/key", "{world}/job/up/key", "../none", "/dev/zero"]
)
def test_find_references_refuses_files_outside_directory_of_manifest(world: Path, path: str) -> None:
    made = manifest(world, path)
    with pytest.raises(InputUnusable) as refusal:
        find_references(made, {})
    text = str(refusal.value)
    real = os.path.realpath(world / "job" / path.format(world=world))
    reference = f"${{file:{path.format(world=world)}}}"
    assert text.startswith(
        f"{world}/job/m.yml:3:43: error: TOKEN: '{reference}' is not allowed: the file '{real}' is not in"
    )
    assert text.endswith(f"(if you trust the manifest with this file, add --allow-file {real})")
    assert refusal.value.problem.exit_code == ExitCode.NOT_ALLOWED


@pytest.mark.parametrize("allowed", ["key", "job/link", ".", "job/up"])
def test_allow_file_allows_named_file_or_directory(world: Path, allowed: str) -> None:
    made = manifest(world, "link")
    assert find_references(made, {}, AllowedReferences((str(world / allowed),))) == {"file:link": "planted-key"}


def test_allow_file_does_not_allow_neighbouring_file(world: Path) -> None:
    (world / "key-2").write_text("planted")
    with pytest.raises(InputUnusable, match="key-2"):
        find_references(manifest(world, "../key-2"), {}, AllowedReferences((str(world / "key"),)))


def test_linked_manifest_reads_no_file_beside_link(world: Path) -> None:
    manifest(world, "key")
    (world / "m.yml").symlink_to("job/m.yml")
    with pytest.raises(InputUnusable, match=f"'{world}/key' is not in the manifest's directory '{world}/job'"):
        find_references(read_manifest(world / "m.yml"), {})


def test_standard_input_reads_files_in_working_directory(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world / "job")
    for path, is_read in (("sub/token", True), ("../key", False)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.format(path=path).encode())))
        made = read_manifest("-")
        if is_read:
            assert find_references(made, {}) == {f"file:{path}": "planted-token"}
        else:
            with pytest.raises(InputUnusable, match="standard input:3:43"):
                find_references(made, {})


def test_standard_input_from_file_of_another_user_has_no_references(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world / "job")
    manifest(world, "sub/token")
    with (world / "job" / "m.yml").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        made = read_manifest("-")
    assert len(find_references(made, {"HOME": "/h"})) == 2
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4242)
    with pytest.raises(InputUnusable, match=r"standard input:3:.* the manifest belongs to"):
        find_references(made, {"HOME": "/h"})


def test_manifest_behind_open_descriptor_is_read(world: Path) -> None:
    """Covers ``ffdl-submit /dev/stdin model <<END``, which some shells pass as a file without a name."""
    with (world / "gone").open("w+b") as file:
        file.write(b"name: x\n")
        file.flush()
        (world / "gone").unlink()
        assert read_manifest(f"/proc/self/fd/{file.fileno()}").text == "name: x\n"


ODD = {
    "fifo": "it is a named pipe, not a regular file; name a regular file",
    "device": "it is a device, not a regular file; name a regular file",
    "directory": "it is a directory, not a regular file; name a regular file",
    "large": "it has more than 65536 bytes; keep it in a file that the training reads",
    "binary": "it is not text in UTF-8; encode it, with base64 for one",
    "loop": "'odd' is a symbolic link; name a regular file",
    "missing": "it does not exist; give an absolute path, or one from the manifest's directory",
}


@pytest.mark.parametrize("kind", ODD)
def test_find_references_gives_reason_for_file_that_is_not_small_regular_text(world: Path, kind: str) -> None:
    at, allowed = world / "job" / "odd", AllowedReferences()
    made = manifest(world, "odd")
    match kind:
        case "fifo":
            os.mkfifo(at)
        case "device":
            at.symlink_to("/dev/zero")
            allowed = AllowedReferences(("/dev/zero",))
        case "directory":
            at.mkdir()
        case "large":
            at.write_bytes(b"x" * (64 * 1024 + 3))
        case "binary":
            at.write_bytes(b"\xff")
        case "loop":
            at.symlink_to("odd")
    assert find_references(made, {}, allowed) == {"unread:file:odd": ODD[kind]}


def test_find_references_gives_reason_for_path_through_file_and_link_to_nothing(world: Path) -> None:
    (world / "job" / "dangling").symlink_to("nothing")
    missing = "it does not exist; give an absolute path, or one from the manifest's directory"
    for name, why in (
        ("sub/token/x", "'token' is a regular file, not a directory; correct the path"),
        ("nowhere/x", missing),
        ("dangling", missing),
    ):
        assert find_references(manifest(world, name), {}, AllowedReferences())[f"unread:file:{name}"] == why


def test_find_references_gives_reason_for_tilde_and_for_variable_that_is_not_text(world: Path) -> None:
    found = find_references(manifest(world, "~/key"), {"HOME": "M\udcfcller"})
    assert found == {
        "unread:env:HOME": "it is not text in UTF-8; encode it, with base64 for one",
        "unread:file:~/key": "it does not exist, since ~ is not expanded; give an absolute path",
    }


def test_find_references_follows_no_link_put_in_place_of_directory_after_check(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real = manifest(world, "sub/key"), os.open
    (world / "job" / "sub" / "key").write_text("own")
    assert find_references(made, {}) == {"file:sub/key": "own"}

    def swap(path: str, *given: object, **more: object) -> int:
        if (world / "job" / "sub" / "token").exists():
            (world / "job" / "sub").rename(world / "moved")
            (world / "job" / "sub").symlink_to("..")
        return real(path, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", swap)
    assert [*find_references(made, {})] == ["unread:file:sub/key"]


def test_manifest_of_another_user_has_no_references_unless_allowed(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = manifest(world, "sub/token")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4242)
    with pytest.raises(InputUnusable) as refusal:
        find_references(made, {"HOME": "/h"})
    first, second = str(refusal.value).splitlines()
    assert first.startswith(
        f"{world}/job/m.yml:3:21: error: OTHER: '${{env:HOME}}' is not allowed: the manifest belongs to"
    )
    assert "TOKEN: '${file:sub/token}'" in second and second.endswith("--allow-references)")
    assert len(find_references(made, {"HOME": "/h"}, AllowedReferences(foreign=True))) == 2
    with pytest.raises(InputUnusable, match="--allow-file"):
        find_references(manifest(world, "../key"), {}, AllowedReferences(foreign=True))
    (world / "job" / "m.yml").write_text("name: x\n")
    assert find_references(read_manifest(world / "job" / "m.yml"), {}) == {}


@pytest.mark.parametrize(
    "value",
    [
        "'${secret:hub}'",
        r'"\x24{secret:hub}"',
        r'"${secr\u0065t:\U00000068ub}"',
        '"${secret:\\\n   hub}"',
        'it\'s, TOKEN: " \' # ", TOKEN: "${secret:hub}"',
        '"\n # ", TOKEN: "${secret:hub}"',
    ],
)
def test_manifest_of_another_user_names_no_secret_of_caller(
    world: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    (world / "m.yml").write_text(f"batch: {{secrets: {{TOKEN: {value}}}}}\n")
    parsed = parse_manifest(ManifestSource(f"{HEAD}{(world / 'm.yml').read_text()}", "m.yml", "/"))
    assert parsed.spec is not None and parsed.spec.batch.secrets == {"TOKEN": "${secret:hub}"}
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4242)
    with pytest.raises(InputUnusable, match=r"'\$\{secret:hub\}' is not allowed"):
        find_references(read_manifest(world / "m.yml"), {})


def test_references_in_comments_are_neither_refused_nor_read(world: Path) -> None:
    text = "# a: ${file:/etc/passwd}\nx: 'a # b'\ny: {a: \"# 1\", b: '${env:A}'}  # was ${file:/etc/shadow}\n"
    (world / "m.yml").write_text(text)
    assert find_references(read_manifest(world / "m.yml"), {"A": "1"}) == {"env:A": "1"}
