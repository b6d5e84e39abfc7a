"""``ffdl daemon``, and what every command says of a daemon with other settings."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from ffdl_batch.config.daemon_location import this_machine
from ffdl_batch.config.fingerprint import take_fingerprints
from ffdl_batch.config.load import load_settings
from tests.unit.cli.programs import FFDL, FFDL_SUBMIT, environment, json_lines, run
from tests.unit.client.fake_daemon import FakeDaemon


def holder() -> dict[str, object]:
    """What a lock says of process 1."""
    machine = this_machine()
    place = {"host": machine.host, "boot_id": machine.boot_id, "start_ticks": machine.start_ticks(1)}
    return {**place, "pid": 1, "socket": "", "started_at": 1_800_000_000.0}


def write_lock(daemon: FakeDaemon, **environ: str) -> None:
    """As if the fake daemon, which calls itself process 1, had been started with this environment."""
    env = environment(daemon, environ)
    settings = take_fingerprints(load_settings(cwd=Path("/"), environ=env), env)
    lock = holder() | {"socket": str(daemon.path), "settings": settings}
    state = Path(env["FFDL_STATE_DIR"])
    state.mkdir(exist_ok=True)
    (state / "daemon.lock").write_text(json.dumps(lock))


def test_daemon_status_and_stop_report_no_running_daemon(short_dir: Path) -> None:
    env = {"FFDL_STATE_DIR": str(short_dir), "FFDL_SOCKET": str(short_dir / "s")}
    done = run(FFDL, "daemon", "status", env=env)
    assert (done.returncode, done.stdout) == (1, "no daemon runs; the next command that needs one starts it\n")
    assert json_lines(run(FFDL, "daemon", "status", "--json", env=env).stdout)[0]["running"] is False
    assert run(FFDL, "daemon", "stop", env=env).stdout == "no daemon ran\n"


def test_daemon_status_exits_75_when_daemon_does_not_answer(short_dir: Path) -> None:
    """Whoever is process 1 holds the lock and listens, and takes no connection."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short_dir / "s"))
        silent.listen()
        (short_dir / "daemon.lock").write_text(json.dumps(holder()))
        env = {"FFDL_STATE_DIR": str(short_dir), "FFDL_SOCKET": str(short_dir / "s")}
        done = run(FFDL, "daemon", "status", env=env)
    assert (done.returncode, done.stdout) == (75, "")
    assert "your daemon is process 1 on" in done.stderr and "end it with: ffdl daemon stop" in done.stderr


def test_daemon_status_prints_settings_that_differ_from_shell(daemon: FakeDaemon) -> None:
    write_lock(daemon, FFDL_LEASE_S="7")
    same = run(FFDL, "daemon", "status", daemon=daemon, env={"FFDL_LEASE_S": "7"})
    assert same.returncode == 0
    assert "Settings:            those of this shell\n" in same.stdout
    assert f"Socket:              {daemon.path}\n" in same.stdout
    other = json_lines(run(FFDL, "daemon", "status", "--json", daemon=daemon).stdout)[0]
    assert (other["running"], other["daemon"]["version"]) == (True, "9.9")
    assert other["differs"].startswith("the setting lease_s (default) differs from that of the running daemon (")


def test_commands_warn_in_one_line_if_settings_differ_from_daemon(
    daemon: FakeDaemon, manifest: Path, model: Path
) -> None:
    write_lock(daemon)
    for arguments in (["list"], ["config"]):
        done = run(FFDL, *arguments, daemon=daemon, env={"FFDL_IMAGES_DIRS": "/nope"})
        assert done.returncode == 0
        assert done.stderr.startswith(
            "ffdl: warning: the setting images_dirs (environment FFDL_IMAGES_DIRS) differs from"
        )
        assert done.stderr.endswith("to apply the new one: ffdl daemon restart\n")
        assert done.stderr.count("\n") == 1
    quiet = run(FFDL_SUBMIT, "-Q", manifest, model, daemon=daemon, env={"FFDL_IMAGES_DIRS": "/nope"})
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert run(FFDL, "list", daemon=daemon, env={"FFDL_BACKEND": "slurm", "FFDL_STRICT": "1"}).stderr == ""


def test_commands_exit_78_for_invalid_configuration_file(daemon: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "ffdl.toml").write_text("leese_s = 1\n")
    for arguments in (["list"], ["show", "training-000000001"], ["daemon", "status"]):
        done = run(FFDL, *arguments, daemon=daemon, cwd=tmp_path)
        assert (done.returncode, "ffdl.toml: unknown key 'leese_s'" in done.stderr) == (78, True)
    assert daemon.requests == []


def test_list_works_in_deleted_working_directory(daemon: FakeDaemon, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = ("/bin/sh", "-c", f'rmdir {gone}; exec "$@"', "sh", *FFDL)
    assert run(program, "list", daemon=daemon, cwd=gone).returncode == 0
