"""What is wrong is said in a sentence, with an exit code that a script can use, and leaves nothing half-made."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.cluster.people import Completed, Person


@pytest.fixture(scope="module")
def model(alice: Person) -> str:
    """A good model."""
    return alice.model("empty", {"README": "nothing here\n"})


@pytest.fixture(scope="module")
def good(alice: Person) -> str:
    """A good manifest."""
    return alice.manifest("good", "true")


def traces(alice: Person) -> tuple[set[str], set[str]]:
    """All that a refused submission could leave behind: rows and files. Whole archives may stay, by their content."""
    ids = alice.job_ids()
    found = alice.run("find", alice.state, "-maxdepth", "2", "-printf", "%P\n").stdout.splitlines()
    archives = {name for name in found if name.startswith("models/") and name.endswith(".zip")}
    rung = {f"doorbell/{job_id}" for job_id in ids}  # jobs that were there before may have news
    return ids, {name for name in found if name.split("/")[0] in ("jobs", "models", "doorbell")} - archives - rung


@pytest.fixture(autouse=True)
def nothing_left(alice: Person) -> Iterator[None]:
    """No row, no job directory, no unfinished upload, no job in the queue."""
    before, queue = traces(alice), alice.queue()
    yield
    assert traces(alice) == before
    assert alice.queue() <= queue


def submit(alice: Person, manifest: str, model: str, *options: str) -> Completed:
    """The command, whose end is looked at; its message is short and no stack trace."""
    done = alice.run("ffdl-submit", *options, manifest, model, check=False)
    assert done.stdout == "" and "Traceback" not in done.stderr and "unexpected error" not in done.stderr
    assert 1 <= len(done.stderr.splitlines()) <= 3, done.stderr
    return done


def archive(alice: Person, name: str, fill: Callable[[zipfile.ZipFile], None]) -> str:
    """A zip archive in the home directory."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as opened:
        fill(opened)
    path = f"{alice.home}/{name}"
    alice.run("rm", "-f", path)
    alice.host_path(path).write_bytes(buffer.getvalue())
    return path


@pytest.mark.full
def test_submit_rejects_missing_model(alice: Person, good: str) -> None:
    done = submit(alice, good, "no-such-model")
    assert (done.returncode, "no-such-model" in done.stderr) == (66, True)


@pytest.mark.full
def test_submit_rejects_missing_manifest(alice: Person, model: str) -> None:
    done = submit(alice, "no-such.yml", model)
    assert (done.returncode, "no-such.yml" in done.stderr) == (66, True)


@pytest.mark.full
def test_submit_rejects_unreadable_model(alice: Person, good: str) -> None:
    alice.run("rm", "-f", "locked.zip")
    alice.write("~/locked.zip", "x")
    alice.run("chmod", "000", "locked.zip")
    done = submit(alice, good, "locked.zip")
    assert done.returncode == 66 and "locked.zip" in done.stderr and "ermission" in done.stderr


@pytest.mark.full
def test_submit_rejects_model_that_is_not_a_zip_archive(alice: Person, good: str) -> None:
    alice.write("~/broken.zip", "PK this is no archive\n")
    done = submit(alice, good, "broken.zip")
    assert (done.returncode, "broken.zip" in done.stderr, "zip" in done.stderr) == (78, True, True)


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil.py", "a/../../evil.py"])
@pytest.mark.full
def test_submit_rejects_zip_entry_outside_model_directory(alice: Person, good: str, name: str) -> None:
    path = archive(alice, "slip.zip", lambda opened: opened.writestr(name, "x"))
    done = submit(alice, good, path)
    assert done.returncode == 78 and name in done.stderr


@pytest.mark.full
def test_submit_rejects_zip_with_symbolic_link(alice: Person, good: str) -> None:
    link = zipfile.ZipInfo("passwords")
    link.external_attr = 0o120777 << 16
    path = archive(alice, "link.zip", lambda opened: opened.writestr(link, "/etc/passwd"))
    done = submit(alice, good, path)
    assert done.returncode == 78 and "passwords" in done.stderr


@pytest.mark.full
def test_submit_rejects_zip_that_would_unpack_to_gigabytes(alice: Person, good: str) -> None:
    """Entries that share one compressed body would need terabytes; here one that says so is enough."""
    path = archive(alice, "bomb.zip", lambda opened: opened.writestr("zeros", b""))
    data = bytearray(alice.host_path(path).read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = (0xFFFFFFF0).to_bytes(4, "little")  # uncompressed size in the directory
    alice.host_path(path).write_bytes(bytes(data))
    done = submit(alice, good, path)
    assert done.returncode == 78 and "would unpack to 4294967280 bytes" in done.stderr


IMPOSSIBLE: Sequence[tuple[dict[str, object], Sequence[str], str]] = (
    ({"cpus": 9}, (), "9 CPUs per learner, but no node here has more than 8"),
    ({"memory": "64GiB"}, (), "per learner, but no node here has more than"),
    ({"gpu_type": "h100"}, (), "there is no GPU of type 'h100' here; known: a100, v100"),
    ({"gpus": 1.5}, (), "shares of a GPU"),
    ({"gpus": -1}, (), "gpus"),
    ({"learners": 2.5}, (), "learners"),
    ({"memory": "lots"}, (), "lots"),
    ({}, ("--partition=nowhere",), "there is no partition 'nowhere'; known: main, short, spot, urgent"),
    ({}, ("--dependency=afterok:training-00000000z",), "there is no training training-00000000z"),
    ({}, ("--backend=pbs",), "pbs"),
)


@pytest.mark.parametrize(
    ("fields", "options", "said"),
    [
        ({"gpus": 5}, (), "5 GPUs per learner, but no node here has more than 4"),
        ({}, ("--partition=short", "--time=1-0"), "is over the limit of short"),
        *(pytest.param(*case, marks=pytest.mark.full) for case in IMPOSSIBLE),
    ],
)  # fmt: skip
def test_submit_exits_78_for_impossible_resources_or_options(
    alice: Person, model: str, fields: dict[str, object], options: tuple[str, ...], said: str
) -> None:
    done = submit(alice, alice.manifest("impossible", "true", "", **fields), model, *options)
    assert (done.returncode, said in done.stderr) == (78, True), done


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--time=soon", "--time: 'soon' is not a time limit"),
        ("--network=egress", "--network: level egress needs destinations"),
    ],
)
@pytest.mark.full
def test_submit_exits_2_for_invalid_option_value(alice: Person, model: str, option: str, said: str) -> None:
    done = submit(alice, alice.manifest("usage", "true"), model, option)
    assert (done.returncode, said in done.stderr) == (2, True), done


@pytest.mark.full
def test_submit_rejects_unknown_framework_with_manifest_line(alice: Person, model: str) -> None:
    text = "name: x\nframework:\n  name: theano\n  version: 1.0\n  command: 'true'\n"
    done = submit(alice, alice.write("~/manifests/theano.yml", text), model)
    assert done.returncode == 78
    assert "theano.yml:3" in done.stderr and "pytorch" in done.stderr


@pytest.mark.full
def test_submit_rejects_missing_image_with_manifest_line(alice: Person, model: str) -> None:
    text = "name: x\nframework:\n  name: custom\n  version: /shared/images/none.sif\n  command: 'true'\n"
    done = submit(alice, alice.write("~/manifests/none.yml", text), model)
    assert done.returncode == 78
    assert "none.yml:4" in done.stderr and "/shared/images/none.sif" in done.stderr


@pytest.mark.full
def test_submit_rejects_manifest_over_1_mib(alice: Person, model: str) -> None:
    path = f"{alice.home}/manifests/huge.yml"
    alice.run("sh", "-c", 'mkdir -p manifests; (echo "name: x"; yes "# padding" | head -c 52428800) > "$0"', path)
    done = submit(alice, path, model)
    assert done.returncode == 78 and "huge.yml" in done.stderr and "more than 1 MiB" in done.stderr
    alice.run("rm", path)


@pytest.mark.full
def test_submit_rejects_manifest_with_nested_yaml_aliases(alice: Person, model: str) -> None:
    lines = ["name: x", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    done = submit(alice, alice.write("~/manifests/laughs.yml", "\n".join(lines) + "\n"), model)
    assert done.returncode == 78 and "laughs.yml" in done.stderr and "alias" in done.stderr


@pytest.mark.full
def test_submit_rejects_deeply_nested_manifest_with_line(alice: Person, model: str) -> None:
    text = "name: x\ndeep: " + "[" * 5000 + "]" * 5000 + "\n"
    done = submit(alice, alice.write("~/manifests/deep.yml", text), model)
    assert done.returncode == 78 and "deep.yml:2" in done.stderr


@pytest.mark.parametrize("name", ["binary.yml", "broken.yml", "empty.yml"])
@pytest.mark.full
def test_submit_rejects_binary_malformed_or_empty_manifest(alice: Person, model: str, name: str) -> None:
    texts = {"binary.yml": "\x00\x01\x02", "broken.yml": "name: [x\ncpus: 1\n", "empty.yml": ""}
    done = submit(alice, alice.write(f"~/manifests/{name}", texts[name]), model)
    assert done.returncode == 78 and name in done.stderr


@pytest.mark.full
def test_submit_test_only_rejects_invalid_slurm_account(alice: Person, good: str, model: str) -> None:
    done = submit(alice, good, model, "--test-only", "--account=nobodys")
    assert done.returncode == 78 and "nvalid account" in done.stderr


@pytest.mark.full
def test_submit_reports_missing_slurm_command_and_creates_no_job(alice: Person, good: str, model: str) -> None:
    """No sbatch on the PATH of a daemon that is to use Slurm: what is missing is named, and it may come back."""
    other = alice.at("no-slurm", "")
    alice.run("sh", "-c", "mkdir -p no-slurm/bin && ln -sfn /opt/ffdl/venv/bin/* no-slurm/bin/")
    path = {"PATH": f"{alice.home}/no-slurm/bin"}
    try:
        done = other.run("/opt/ffdl/venv/bin/ffdl-submit", good, model, env=path, check=False)
    finally:
        other.kill_daemon("TERM")
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert done.returncode in (69, 75, 78), done
    assert "sinfo" in done.stderr or "sbatch" in done.stderr
    assert other.run("ls", f"{other.state}/jobs").stdout == ""


@pytest.mark.full
def test_submit_rejects_misspelled_configuration_key_with_suggestion(alice: Person, good: str, model: str) -> None:
    other = alice.at("wrong", "[backend.slurm]\ngatway = 'cli'\n")
    try:
        done = other.run("ffdl-submit", good, model, check=False)
    finally:
        other.kill_daemon("TERM")
    assert (done.returncode, done.stdout) == (78, "")
    assert "gatway" in done.stderr and "gateway" in done.stderr
