"""Support archives of a real daemon with the local backend: what is in them, what never is, and hostile files."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import preloaded
from tests.contract.daemon_rig import LIMIT_S, PLAIN, Site, site_in, until
from tests.contract.test_shown_commands import PROGRAMS
from tests.preloaded import FFDL, FFDL_SUBMIT
from tests.secret_search import Search

TAG = os.urandom(4).hex()
VALUES = {
    "stored": f"pl\u00e4nted-stored \"x\" 'y' \\ %+/?&\nsecond line-6c1f{TAG}",
    "user": f"planted-store-user-33d1{TAG}",
    "password": f"planted-store-password-51dd{TAG}",
    "in-clear": f"planted-in-clear-2b44{TAG}",
    "variable": f"planted-variable-77aa{TAG}",
    "exported": f"planted-exported-90ce{TAG}",
    "daemons": f"planted-of-daemon-5aa0{TAG}",
    "webhook": f"planted-webhook-e07c{TAG}",
}
PRINTED = {
    "token": f"planted{TAG}".ljust(43, "x"),
    "bearer": f"planted-bearer-8d8d{TAG}",
    "munge": f"plantedMunge{TAG}",
    "url": f"planted-url-12ab{TAG}",
}
"""Not known to ffdl: recognised by their context."""
KEY = f"-----BEGIN PRIVATE KEY-----\nMIIplantedkey{TAG}\n-----END PRIVATE KEY-----"
TRAIN = f"""
import base64, os, sys, urllib.parse
for name in ("HUB", "LITERAL", "SEEN", "MY_TOKEN", "EXPORTED_SECRET"):
    value = os.environ[name]
    print("plain", value)
    print("base64", base64.b64encode(value.encode()).decode(), base64.b64encode(b"me:" + value.encode()).decode())
    print("url", urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value))
print("using ffdl_0a1b2c3d4e5f_{PRINTED["token"]}")
print("Authorization: Bearer {PRINTED["bearer"]}")
print("got MUNGE:{PRINTED["munge"]}==:")
print("opening postgresql://ada:{PRINTED["url"]}@db/x")
print('''{KEY}''')
print("\\x1b]0;title\\x07\\x1b[31mred", "the end of the log", flush=True)
sys.exit(os.environ["SEEN"] == "fails")
"""
MANIFEST = """\
name: support
gpus: 0
framework:
  name: custom
  version: python-numpy
  command: python3 train.py
data_stores:
  - id: here
    type: directory
    training_results: {{container: out}}
    connection: {{path: {base}/stored, user_name: {user}, password: {password}}}
batch:
  env: {{SEEN: {seen}, MY_TOKEN: {variable}}}
  secrets: {{HUB: "${{secret:hub}}", LITERAL: {in_clear}}}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    base = tmp_path_factory.mktemp("support")
    (base / "home").mkdir()
    (base / "ffdl.toml").write_text(
        f'# {KEY.replace(chr(10), chr(10) + "# ")}\n[notices]\nwebhooks = ["https://hooks.example.org/{VALUES["webhook"]}"]\n'
    )
    more = {
        "FFDL_BACKEND": "local", "FFDL_CONFIG": str(base / "ffdl.toml"), "HOME": str(base / "home"),
        "DAEMONS_PASSWORD": VALUES["daemons"],
    }  # fmt: skip
    with site_in(base, more_environment=more) as made:
        made.start(program=PLAIN)
        yield made


@pytest.fixture(scope="module")
def job_id(site: Site) -> str:
    """A job that has failed, so that its own secrets are kept for a resume."""
    base = site.directory
    (base / "model").mkdir()
    (base / "model" / "train.py").write_text(TRAIN)
    (base / "stored" / "out").mkdir(parents=True)
    done = site.try_to("secret", "set", "hub", input=VALUES["stored"])
    assert done.returncode == 0, done
    return run_job(site, "fails")


def run_job(site: Site, seen: str) -> str:
    """The id of a job that has ended."""
    base, path = site.directory, site.directory / f"{seen}.yml"
    path.write_text(
        MANIFEST.format(
            base=base, user=VALUES["user"], password=VALUES["password"], variable=VALUES["variable"], seen=seen,
            in_clear=VALUES["in-clear"],
        )
    )  # fmt: skip
    done = preloaded.run(
        [*FFDL_SUBMIT, "--parsable", "--export=EXPORTED_SECRET", str(path), str(base / "model")],
        env={**site.environment(), "EXPORTED_SECRET": VALUES["exported"]}, cwd=base, timeout=LIMIT_S, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done
    found = str(done.stdout).strip()
    until(lambda: site.ask("GET", f"/api/v1/jobs/{found}")[1]["job"]["ended_at"], f"the end of {found}:\n{site.log}")
    return found


def write(site: Site, *words: str, program: tuple[str, ...] = FFDL) -> dict[str, str]:
    """The members of the archive that the command writes, without its top directory."""
    target = site.directory / f"archive-{len(list(site.directory.glob('archive-*')))}.tar.gz"
    done = preloaded.run(
        [*program, "support", *words, "-o", str(target)], env=site.environment(), cwd=site.directory, timeout=LIMIT_S,
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with tarfile.open(target) as archive:
        members = archive.getmembers()
        assert all(one.isreg() for one in members)
        texts = {one.name: archive.extractfile(one) for one in members}
        return {name.partition("/")[2]: file.read().decode() for name, file in texts.items() if file is not None}


def planted(parts: dict[str, str]) -> dict[str, set[str]]:
    search = Search({**VALUES, **PRINTED, "key": KEY, "key line": f"MIIplantedkey{TAG}"})
    found = {name: search.within(f"{name}\n{text}".encode()) for name, text in parts.items()}
    return {name: names for name, names in found.items() if names}


def test_support_archive_of_job_has_all_views_files_and_logs(site: Site, job_id: str) -> None:
    parts = write(site, job_id)
    assert json.loads(parts["job.json"])["id"] == job_id
    assert json.loads(parts["why.json"])["job_id"] == job_id
    assert json.loads(parts["events.json"])[0]["state"] == "PENDING"
    assert json.loads(parts["daemon.json"])["version"] == json.loads(parts["client.json"])["ffdl"]
    assert json.loads(parts["attempt-1/launch.json"])["job_id"] == job_id
    assert json.loads(parts["configuration.json"])["backend"][0] == "local"
    assert [one["phase"] for one in json.loads(parts["scheduler.json"])["observed"].values()] == ["ended"]
    assert "name: support" in parts["manifest.yml"]
    assert "INFO" in parts["daemon.log"]
    log = parts["attempt-1/logs/learner-1/training-log.txt"]
    assert "the end of the log" in log and "\x1b" not in log
    for name in (*parts.keys() - {"MANIFEST.txt"}, "attempt-1/environment.json: "):
        assert name in parts["MANIFEST.txt"]


def test_support_archives_contain_no_planted_secret(site: Site, job_id: str) -> None:
    log = Path(site.state, "jobs", job_id, "attempt-1", "logs", "learner-1", "training-log.txt").read_text()
    printed = VALUES.keys() - {"user", "password", "daemons", "webhook"} | PRINTED.keys()
    assert Search({**VALUES, **PRINTED}).within(log.encode()) == printed, "the test plants what it searches"
    assert planted(write(site, job_id)) == {}
    assert planted(write(site, program=PROGRAMS["ffdl-admin"])) == {}


def test_support_warns_of_secrets_whose_values_were_deleted(site: Site, job_id: str) -> None:
    completed = run_job(site, "completes")
    job = until(lambda: not Path(site.state, "jobs", completed, "secrets.json").exists(), "the removal of its secrets")
    assert job
    done = site.try_to("support", completed, "-o", str(site.directory / "completed"))
    assert (done.returncode, "warning: the values of these secrets were deleted" in done.stderr) == (0, True)
    assert "SECRETS-NOT-REMOVED.txt" not in write(site, job_id)


def test_support_reads_hostile_files_within_bounds(site: Site, job_id: str) -> None:
    attempt = Path(site.state, "jobs", job_id, "attempt-1")
    outside = site.directory / "shadow"
    outside.write_text(f"root:{TAG}-not-to-be-read\n")
    (attempt / "batch.log").unlink(missing_ok=True)
    os.mkfifo(attempt / "batch.log")
    (attempt / "link").symlink_to(outside)
    (attempt / "events" / "link.jsonl").symlink_to(outside)
    with (attempt / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    with (attempt / "long").open("wb") as file:
        file.write(b"y" * 200_000 + f"\n{VALUES['in-clear']}\n".encode())
    (attempt / "escapes").write_bytes(b"\x1b[2J\xff\n" + "\u202e".encode())
    Path(os.fsdecode(os.fsencode(attempt) + b"/\xff\n\x1b" + VALUES["in-clear"].encode())).write_text("x")
    (attempt / "submit").rename(attempt / "moved")
    (attempt / "submit").symlink_to(outside.parent)
    parts = write(site, job_id)
    listed = parts["MANIFEST.txt"]
    assert "attempt-1/batch.log: it is a named pipe" in listed
    assert "attempt-1/link: 'link' is a symbolic link" in listed
    assert "attempt-1/events/link.jsonl: " in listed
    assert "attempt-1/sparse: it is binary" in listed
    assert "attempt-1/submit: 'submit' is a symbolic link" in listed
    assert parts["attempt-1/long"] == "***\n"
    assert parts["attempt-1/escapes"] == "\\x1b[2J\ufffd\n\\u202e"
    assert parts["attempt-1/\\xff\\n\\x1b***"] == "x"
    assert not any(f"{TAG}-not-to-be-read" in text for text in parts.values())
    assert planted(parts) == {}


def test_support_never_replaces_file_without_force(site: Site, job_id: str) -> None:
    target = site.directory / "kept"
    target.write_text("mine")
    done = site.try_to("support", job_id, "-o", str(target))
    assert (done.returncode, target.read_text()) == (2, "mine")
    assert "exists" in done.stderr
    site.run("support", job_id, "-o", str(target), "--force")
    assert tarfile.is_tarfile(target)
    link = site.directory / "a-link"
    link.symlink_to(target)
    assert site.try_to("support", job_id, "-o", str(link), "--force").returncode == 2
    assert site.try_to("support", "training-000000000", "-o", str(site.directory / "new")).returncode == 1
    assert not (site.directory / "new").exists()


def test_admin_support_describes_installation_without_daemon(site: Site, job_id: str, tmp_path: Path) -> None:
    parts = write(site, program=PROGRAMS["ffdl-admin"])
    database = json.loads(parts["database.json"])
    assert database["states"]["FAILED"] == 1
    assert sum(database["states"].values()) == database["rows"]["jobs"]
    assert database["revision"] == database["head"]
    assert job_id not in parts["database.json"]
    assert "[notices]" in parts["configuration/1-ffdl.toml"]
    nowhere = Site(tmp_path, more_environment={**site.more_environment, "FFDL_CONFIG": str(tmp_path / "none")})
    listed = write(nowhere, program=PROGRAMS["ffdl-admin"])["MANIFEST.txt"]
    assert "configuration.json: the configuration cannot be used" in listed
    assert "database.json: " in listed.partition("Left out:")[2]


def test_admin_support_skips_unreadable_secret_and_names_it(site: Site, job_id: str) -> None:
    damaged = Path(site.state, "secrets", "damaged")
    with Path(site.state, "daemon.log").open("a") as log:
        log.write(f"printed {VALUES['stored']}\n")
    damaged.mkdir()
    try:
        parts = write(site, program=PROGRAMS["ffdl-admin"])
    finally:
        damaged.rmdir()
    assert "printed ***" in parts["daemon.log"]
    assert planted(parts) == {}
    assert "damaged (" in parts["SECRETS-NOT-REMOVED.txt"]
    assert "SECRETS-NOT-REMOVED.txt: " in parts["MANIFEST.txt"]
    assert "SECRETS-NOT-REMOVED.txt" not in write(site, program=PROGRAMS["ffdl-admin"])
