"""``ffdl data`` against a real S3 server: files go and come, and no credential is anywhere but where it must be."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.domain.data.store_kinds import StoreKind
from tests import preloaded
from tests.cache_rig import until
from tests.contract.linked_tree import check_back, lay
from tests.fakes.fault_proxy import Rule
from tests.file_modes import FFDL_AS_OTHERS
from tests.preloaded import FFDL
from tests.staging_rig import KEY, MIB, SECRET, StagingRig, rig

__all__ = ["rig"]
NOISE = random.Random(16).randbytes(2 * MIB + 3)
TREE = {"big": NOISE, "deep/b c": b"1", "empty": b""}
LIMIT_S = 180
SLOWLY = """
import sys
if "ffdl_batch.staging" in sys.orig_argv:
    import time
    from ffdl_batch.staging.stores.store import Sent
    chunks = Sent.chunks
    def slowly(sent):
        for data in chunks(sent):
            yield data
            time.sleep(600)
    Sent.chunks = slowly
else:
    from ffdl_batch.client.stores import transfers
    transfers._ENDS_WITHIN_S = 120
"""
"""Of what goes into a directory the first chunk goes, and a program that ends has time for it."""


class Person:
    """Somebody with a shell, keys of the store, and files."""

    def __init__(self, rig: StagingRig) -> None:
        self.rig, self.directory = rig, rig.directory
        self.popen: type[preloaded.Popen] = preloaded.PopenTree
        self.home = self.directory / "home"
        self.home.mkdir()
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "FFDL_STATE_DIR": str(self.home / "state"),
            "PYTHONWARNINGS": "error",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": rig.proxy.endpoint,
        }

    def lay(self, files: dict[str, bytes], where: str = "mine") -> Path:
        """Files of the person's own."""
        for name, data in files.items():
            (self.directory / where / name).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / where / name).write_bytes(data)
        return self.directory / where

    def start(self, *words: str | Path, **changes: Any) -> subprocess.Popen[str]:
        """``ffdl data ...`` in a process group of its own."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": self.environ, **changes}
        argv = [*options.pop("program", FFDL), "data", *map(str, words)]
        return self.popen(argv, text=True, cwd=self.home, start_new_session=True, **options)

    def run(self, *words: str | Path, code: int = 0, **changes: Any) -> tuple[str, str]:
        """Its two outputs, once it has ended with that code."""
        process = self.start(*words, **changes)
        said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == code, said
        return said

    def url(self, prefix: str) -> str:
        """Of the test's bucket."""
        return f"s3://{self.rig.bucket}/{prefix}"


@pytest.fixture
def person(rig: StagingRig) -> Person:
    """Somebody new."""
    return Person(rig)


def found_in(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_data_put_ls_and_get_round_trip_a_directory(person: Person) -> None:
    source = person.lay(TREE)
    out, _ = person.run("put", source, person.url("sets/a"))
    assert out.startswith("3 files stored in ")
    assert sorted(person.rig.keys()) == [f"sets/a/{name}" for name in sorted(TREE)]
    out, _ = person.run("put", source, person.url("sets/a"))
    assert "(0 B moved, 3 existed)" in out

    out, said = person.run("ls", person.url("sets"))
    assert [line.split(None, 2)[::2] for line in out.splitlines()] == [
        [str(len(data)), f"a/{name}"] for name, data in sorted(TREE.items())
    ]
    assert said == "ffdl: 3 files, 2 MiB\n"
    entries = [json.loads(line)["entry"] for line in person.run("ls", "--json", person.url("sets/a"))[0].splitlines()]
    assert {entry["name"]: entry["size"] for entry in entries} == {name: len(data) for name, data in TREE.items()}

    out, _ = person.run("get", person.url("sets/a"), "--out", person.directory / "back")
    assert out.startswith("3 files brought in ")
    assert found_in(person.directory / "back") == TREE
    done = json.loads(person.run("get", person.url("sets/a"), "--out", person.directory / "back", "--json")[0])
    assert (done["schema"], done["done"]["kept"], done["done"]["bytes"]) == (1, 3, 0)


def test_data_put_and_get_round_trip_a_single_file(person: Person) -> None:
    source = person.lay({"one [1].bin": b"1", "other": b"2"})
    person.run("put", source / "one [1].bin", person.url("x"))
    assert person.rig.keys() == ["x/one [1].bin"]
    person.run("get", person.url("x/one [1].bin"))
    assert (person.home / "one [1].bin").read_bytes() == b"1"


@pytest.mark.usefixtures("bound_by_modes")
@pytest.mark.parametrize("kind", [StoreKind.S3, StoreKind.FILE])
def test_data_put_and_get_keep_links_modes_holes_and_empty_directories(person: Person, kind: StoreKind) -> None:
    mine, back = person.directory / "mine", person.directory / "back"
    lay(mine)
    (mine / "contained").unlink()
    (mine / "contained").symlink_to(mine / "epoch3")
    (mine / "outward").symlink_to("/etc")
    url = person.url("set") if kind is StoreKind.S3 else (person.directory / "store").as_uri()
    for _ in range(2):
        said = person.run("put", mine, url)[1]
        assert said == "ffdl: outward is left out: it is a link that leads out of the directory, to /etc\n"
        person.run("get", url, "--out", back)
        check_back(back)
    (mine / "latest").unlink()
    (mine / "latest").symlink_to("deep")
    person.run("put", mine, url)
    person.run("get", url, "--out", back)
    assert str((back / "latest").readlink()) == "deep"


def test_data_put_replaces_no_file_of_a_directory_by_a_link(person: Person) -> None:
    store, mine = person.lay({"latest": b"theirs", "epoch3/x": b"1"}, "store"), person.lay({"data": b"2"})
    (mine / "latest").symlink_to("data")
    (mine / "epoch3").symlink_to("data")
    said = person.run("put", mine, store.as_uri())[1]
    for name in ("latest", "epoch3"):
        assert f"{name} is left out: something else has its name here" in said
    assert found_in(store) == {"latest": b"theirs", "epoch3/x": b"1", "data": b"2"}


def test_data_get_keeps_differing_local_files_without_force(person: Person) -> None:
    person.rig.put("set/a", b"theirs")
    mine = person.lay({"a": b"mine"})
    _, said = person.run("get", person.url("set"), "--out", mine, code=1)
    assert "are not what the store has (a)" in said
    assert "name another directory (--out), or have them replaced (--force)" in said
    assert found_in(mine) == {"a": b"mine"}
    person.run("get", person.url("set"), "--out", mine, "--force")
    assert found_in(mine) == {"a": b"theirs"}


@pytest.mark.parametrize("by_secret", [True, False])
def test_data_commands_leave_no_credentials_in_files_or_output(person: Person, by_secret: bool) -> None:
    rig, words = person.rig, []
    keys = rig.server.make_user(f"u{abs(hash(str(rig.directory))):x}")
    rig.secrets.write_text("")
    if by_secret:
        secrets = person.home / "state" / "secrets"
        secrets.mkdir(parents=True)
        for name, value in zip(("my-key", "my-secret"), keys, strict=True):
            (secrets / name).write_text(value)
        words = ["--secret", "user_name=my-key", "--secret", "password=my-secret"]
        del person.environ["AWS_ACCESS_KEY_ID"], person.environ["AWS_SECRET_ACCESS_KEY"]
    else:
        person.environ |= {"AWS_ACCESS_KEY_ID": keys[0], "AWS_SECRET_ACCESS_KEY": keys[1]}
    source = person.lay(TREE)
    rig.server.check_keys(True)
    try:
        said = person.run("put", source, person.url("sets"), *words)
        person.environ |= {"AWS_ACCESS_KEY_ID": "WRONG", "AWS_SECRET_ACCESS_KEY": "wrong"}
        wrong = person.run("ls", person.url("sets"), code=77)
    finally:
        rig.server.check_keys(False)
    kept = {path: data for path, data in found_in(rig.directory).items() if "/secrets/" not in path}
    assert any("transfers/" in path for path in kept)
    for data in (*kept.values(), *(text.encode() for text in (*said, *wrong))):
        assert keys[1].encode() not in data
    assert keys[0] in rig.proxy.authorizations[0]


def test_data_get_disables_core_dumps(person: Person) -> None:
    """Nor does what it starts; the shell may allow one."""
    person.rig.put("a", b"1")
    person.rig.proxy.rules = [Rule(hang_s=60.0)]
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    process = person.start("get", person.url(""), "--out", "got", preexec_fn=lambda: _allow_cores(hard))
    try:
        limits = Path(f"/proc/{process.pid}/limits")
        until(lambda: re.search(r"Max core file size +[01] ", limits.read_text()), "the limit")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _allow_cores(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


def test_data_ls_suggests_secret_option_only_without_credentials(person: Person) -> None:
    person.rig.proxy.rules = [Rule("GET", status=403, code="AccessDenied")]
    assert "--secret" not in person.run("ls", person.url("sets"), code=77)[1]
    del person.environ["AWS_ACCESS_KEY_ID"], person.environ["AWS_SECRET_ACCESS_KEY"]
    assert "--secret" in person.run("ls", person.url("sets"), code=77)[1]
    assert person.rig.proxy.authorizations[-1] == ""


def test_data_put_resumes_after_ctrl_c(person: Person) -> None:
    rig = person.rig
    names = {f"{number:02}": NOISE[:300_000] for number in range(30)}
    source = person.lay(names)
    hangs = Rule("PUT", after=8, hang_s=600)
    rig.proxy.rules = [hangs]
    process = person.start("put", source, person.url("x"), "-j", "2")
    until(lambda: hangs.done == 2 and len(rig.keys()) >= 5, "two uploads that hang after others")
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "run the same command again" in said
    stored = len(rig.keys())
    assert 5 <= stored < 30
    rig.proxy.rules = []
    rig.proxy.requests.clear()
    person.run("put", source, person.url("x"))
    assert len(rig.keys()) == 30
    assert len([1 for method, _, _ in rig.proxy.requests if method == "PUT"]) <= 30 - stored


def test_data_get_keeps_complete_files_and_resumes_after_ctrl_c(person: Person) -> None:
    rig, got = person.rig, person.directory / "got"
    names = {f"{number:02}": NOISE[: 300_000 + number] for number in range(30)}
    for name, data in names.items():
        rig.put(f"x/{name}", data)
    rig.proxy.rules = [Rule("GET", "/x/", times=5), Rule("GET", "/x/", pause_s=60)]
    process = person.start("get", person.url("x"), "--out", got, "-j", "2")
    until(lambda: got.is_dir() and sum(1 for path in got.iterdir() if path.name in names) >= 3, "three files")
    os.killpg(process.pid, signal.SIGINT)
    out, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (130, "")
    assert "run the same command again" in said and ".ffdl-*.part" in said and "Traceback" not in said
    found = found_in(got)
    assert {name: data for name, data in found.items() if name in names} == {
        name: data for name, data in names.items() if name in found
    }
    assert all(re.fullmatch(r"\.ffdl-[0-9a-f]{24}\.part", name) for name in found if name not in names)
    rig.proxy.rules = []
    person.run("get", person.url("x"), "--out", got)
    assert found_in(got) == names


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_data_put_lists_no_partial_file_after_interrupt_or_kill(person: Person, number: signal.Signals) -> None:
    """After Ctrl-C there is nothing; whoever is killed leaves a file that is in no listing."""
    mine, store = person.lay({}), person.directory / "store"
    mine.mkdir()
    with (mine / "large").open("wb") as large:
        large.truncate(32 << 20)
    (person.directory / "site").mkdir()
    (person.directory / "site" / "sitecustomize.py").write_text(SLOWLY)
    person.environ["PYTHONPATH"] = str(person.directory / "site")
    process = person.start("put", mine, store.as_uri())

    def half() -> list[Path]:
        return [path for path in store.glob(".*") if path.stat().st_size]

    try:
        until(half, "a part of the file")
    finally:
        os.killpg(process.pid, number)
    del person.environ["PYTHONPATH"]
    said = process.communicate(timeout=LIMIT_S)[1]
    assert "Traceback" not in said
    assert not (store / "large").exists()
    if number is signal.SIGINT:
        assert process.returncode == 130
        until(lambda: not half(), "the end of the part")
    assert person.run("ls", store.as_uri()) == ("", "ffdl: 0 files, 0 B\n")


def test_data_put_shows_progress_bar_only_on_a_terminal(person: Person) -> None:
    source = person.lay({str(number): NOISE[:200_000] for number in range(8)})
    person.rig.proxy.rules = [Rule("PUT", pause_s=0.1)]
    ours, theirs = os.openpty()
    process = person.start("put", source, person.url("x"), "-j", "1", stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    seen = b""
    while process.poll() is None or select.select([ours], [], [], 0)[0]:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
    assert process.wait(LIMIT_S) == 0
    os.close(ours)
    assert b"\r[" in seen and b" of 8 files, " in seen
    assert seen.endswith(b"\r\x1b[K")
    assert person.run("put", source, person.url("y"))[1] == ""


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("ls", "s3://no-such-bucket-here/a"), 66, "bucket no-such-bucket-here"),
        (("put", "none", "s3://b/a"), 66, "none does not exist"),
        (("put", ".", "https://web/a"), 2, "a web server takes no files"),
        (("get", "s3://b/a", "--out", "/dev/null"), 2, "/dev/null is not a directory; name a directory"),
        (("get", "bucket/a"), 2, "write for example s3://BUCKET/PREFIX"),
        (("ls", "s3://b/a", "--secret", "password"), 2, "write --secret FIELD=NAME"),
        (("get", "s3://b/a", "--option", "ca_file=/x", "--option", "ca_file=/y"), 2, "--option ca_file is given twice"),
        (("ls", "gs://b/a", "--secret", "token=none"), 77, "ffdl secret set none"),
        (("ls", "swift://c/a"), 2, "use --endpoint URL, or set OS_AUTH_URL"),
        (
            ("ls", "swift://c/a", "--endpoint", "host:8080"),
            2,
            "'host:8080' is not the address of a store; write https://",
        ),
        (("ls", "zzz://b/a"), 78, "fsspec knows no protocol zzz"),
    ],
)
def test_data_commands_print_error_and_exit_status_for_invalid_arguments(
    person: Person, words: tuple[str, ...], code: int, text: str
) -> None:
    assert text in person.run(*words, code=code)[1].replace("\n", " ")


def test_data_put_stores_in_directory_and_ignores_modules_in_working_directory(person: Person) -> None:
    source = person.lay(TREE)
    (person.home / "queue.py").write_text("raise SystemExit('imported')")
    person.popen = preloaded.Popen  # the staging program imports its modules itself
    target = person.directory / "nfs" / "set"
    person.run("put", source, target.as_uri())
    assert found_in(target) == TREE
    person.run("get", (target / "deep" / "b c").as_uri(), "--out", person.directory / "one")
    assert found_in(person.directory / "one") == {"b c": b"1"}


def test_quiet_transfer_reports_that_entries_were_left_out(person: Person) -> None:
    source, target = person.lay({"a": b"1"}), person.directory / "kept"
    for name in (b"lat\xfcin", b"\xff"):
        Path(os.fsdecode(os.fsencode(source) + b"/" + name)).write_bytes(b"2")
    (source / "outward").symlink_to("/etc")
    said = person.run("put", source, target.as_uri())[1]
    assert "ffdl: lat\\xfcin is left out: its name is not UTF-8" in said
    said = person.run("put", "-Q", source, target.as_uri())[1]
    assert said == "ffdl: stored: 3 entries were left out; without -Q, the names and reasons are printed\n"
    assert found_in(target) == {"a": b"1"}


def test_data_put_reports_unreadable_files_and_stores_other_files(person: Person) -> None:
    mine = person.lay({"a": b"1", "shut": b"2", "closed/in": b"3", "large": NOISE * 4, "z/z": b"4"})
    for name in ("shut", "large", "closed"):
        (mine / name).chmod(0)
    said = person.run("put", mine, person.url("x"), code=1, program=FFDL_AS_OTHERS)[1]
    (mine / "closed").chmod(0o755)
    assert sorted(person.rig.keys()) == ["x/.ffdl-index.json", "x/a", "x/z/z"]
    for name in ("shut", "large", "closed"):
        assert f"ffdl: {name} cannot be read: Permission denied\n" in said
    *_, last = said.splitlines()
    assert "3 files or directories were not read (" in last
    assert "all others are stored; make them readable, or leave them out" in last
    alone = person.run("put", mine / "shut", person.url("y"), code=1, program=FFDL_AS_OTHERS)[1]
    assert "1 file or directory was not read (shut: Permission denied)" in alone


@pytest.mark.parametrize("shut", [
    {"d0": 0}, {"shut": 0}, {"large": 0}, {"d0": 0o444}, {"d0": 0o111},
    {"d0": 0, "shut": 0, "large": 0, "d1": 0, "d1/a": 0},
])  # fmt: skip
def test_data_get_and_ls_copy_and_list_all_files_but_unreadable_ones(person: Person, shut: dict[str, int]) -> None:
    files = {f"f{n}": NOISE[:1000] for n in range(40)} | {"d0/a": b"1", "d1/a": b"2", "shut": b"3", "large": NOISE * 4}
    mine, got = person.lay(files), person.directory / "got"
    for name, mode in reversed(shut.items()):
        (mine / name).chmod(mode)
    said = person.run("get", mine.as_uri(), "--out", got, code=1, program=FFDL_AS_OTHERS)[1]
    listed, also = person.run("ls", mine.as_uri(), code=1, program=FFDL_AS_OTHERS) if "d0" in shut else ("", "")
    for name in shut:
        (mine / name).chmod(0o755)
    named = {"d0/a" if mode == 0o444 else name for name, mode in shut.items() if name != "d1/a"}
    for name in named:
        assert f"ffdl: {name} cannot be read: Permission denied\n" in said
    *_, last = said.splitlines()
    assert f"{len(named)} file" in last and "not read (" in last and "Permission denied" in last
    assert last.endswith("all others are copied; make them readable, or leave them out")
    assert ("; and 1 more)" in last) is (len(named) > 3)
    assert ".cache" not in said
    wanted = {name: data for name, data in files.items() if not {name, name.partition("/")[0]} & {*named, *shut}}
    assert found_in(got) == wanted  # no incomplete file either
    if "d0" in shut:
        assert "f39" in listed and "all others are listed" in also
    person.run("get", mine.as_uri(), "--out", got)
    assert found_in(got) == files


@pytest.mark.parametrize(("mode", "rest", "words"), [
    (0, "", "you own {shut}, and it has mode 0000; chmod u+rwx {shut}"),
    (0, "/a", "you own {shut}, and it has mode 0000; chmod u+rwx {shut}"),
    (0o444, "/a", "you own {shut}, and it has mode 0444; chmod u+rwx {shut}"),
    (0o444, "", "1 file or directory was not read ({shut}: Permission denied); all others are"),
])  # fmt: skip
@pytest.mark.parametrize("words_of", ["get", "ls", "put"])
def test_data_commands_name_directory_that_denies_access(
    person: Person, words_of: str, mode: int, rest: str, words: str
) -> None:
    shut = person.lay({"a": b"1"}, "shut")
    shut.chmod(mode)
    arguments = {
        "get": (f"{shut.as_uri()}{rest}", "--out", person.directory / "got"),
        "ls": (f"{shut.as_uri()}{rest}",),
        "put": (f"{shut}{rest}", person.url("x")),
    }[words_of]
    said = person.run(words_of, *arguments, code=1, program=FFDL_AS_OTHERS)[1]
    shut.chmod(0o755)
    assert words.format(shut=shut) in said.splitlines()[-1], said
    assert "defect" not in said


def test_data_commands_report_directory_errors_without_bucket_terms(person: Person) -> None:
    mine = person.lay({"a": b"1"})
    missing = person.run("get", (mine / "none").as_uri(), "--out", "got", code=66)[1]
    assert f"directory {mine}/none: there is no such directory on this machine; check the path" in missing
    mine.chmod(0o555)
    refused = person.run("put", person.lay({"b": b"1"}, "more"), mine.as_uri(), code=1, program=FFDL_AS_OTHERS)[1]
    mine.chmod(0o755)
    assert f"{mine}/b on this machine: Permission denied; you own {mine}, and it has mode 0555" in refused
    assert refused.endswith(f"; chmod u+rwx {mine}\n")
    for said in (missing, refused):
        assert not re.search(r"\bnode\b|\bbucket\b|\bkey\b|file store", said)


def test_data_get_reports_output_directory_that_cannot_be_created(person: Person) -> None:
    person.rig.put("a", b"1")
    said = person.run("get", person.url(""), "--out", "/proc/nope", code=1)[1]
    assert "the directory /proc/nope cannot be made on this machine; name a directory that can be made" in said
    assert "bucket and key" not in said
