"""What a learner sees: FfDL's contract in bare form."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ffdl_batch.controller.loopback_namespace import probe
from ffdl_batch.controller.zipapp import DOMAIN, build_zipapp
from ffdl_batch.domain.launch.launch_file import RESTART_LEARNER, Network, Stores
from ffdl_batch.domain.outcome.controller_events import Outcome
from ffdl_batch.runtimes.learner_contract import Places
from ffdl_batch.runtimes.learner_start import isolated_argv
from tests.contract.controller_rig import ROOT, Rig, job_id, plain_run, rig  # noqa: F401

DUMP = "import json, os; json.dump(dict(os.environ), open(os.environ['RESULT_DIR'] + '/env.json', 'w'))\n"
DUMP_AND_PLACE = "python3 main.py; pwd > $RESULT_DIR/pwd"


def seen(run: Rig) -> dict[str, str]:
    found = json.loads((Path(run.attempt.results) / "env.json").read_text())
    assert isinstance(found, dict)
    return found


def test_learner_environment_matches_ffdl_contract(run: Rig) -> None:
    data, bucket = run.base / "bucket" / "in", run.base / "bucket" / "out"
    data.mkdir(parents=True)
    bucket.mkdir()
    places = Places(run.job, run.attempt, job_id(), "in", "out", str(data), str(bucket))
    run.write(DUMP_AND_PLACE, model={"main.py": DUMP}, places=places)
    host = {"KUBERNETES_PORT": "x", "DLAAS_JOB": "x", "APPTAINER_BIND": "/etc", "SINGULARITYENV_X": "1", "SECRET": "x"}
    assert run.run(**host) == 0, run.errors
    env = seen(run)
    expected = {
        "DATA_DIR": str(data),
        "RESULT_DIR": run.attempt.results,
        "RESULT_BUCKET_DIR": str(bucket),
        "CHECKPOINT_DIR": run.job.checkpoints,
        "MODEL_DIR": run.attempt.model,
        "LOG_DIR": run.attempt.learner_logs(1),
        "JOB_STATE_DIR": run.attempt.state,
        "TRAINING_ID": job_id(),
        "TRAINING_COMMAND": DUMP_AND_PLACE,
        "GPU_COUNT": "0.000000",
        "NUM_LEARNERS": "1",
        "LEARNER_ID": "1",
        "LEARNER_NAME_PREFIX": f"learner-{job_id()}",
        "DOWNWARD_API_POD_NAME": f"learner-{job_id()}-0",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "RESUME": "0",
        "FFDL_ATTEMPT": "1",
        "FFDL_RESTART": "0",
        "FFDL_CHECKPOINT": "",
        "PYTHONUNBUFFERED": "1",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert (Path(run.attempt.results) / "pwd").read_text().strip() == env["MODEL_DIR"]
    assert env["PYTHONPATH"].split(":")[-1] == env["MODEL_DIR"]
    unwanted = ("KUBERNETES", "DLAAS", "APPTAINER", "SINGULARITY", "SECRET", "HOSTNAME", "FFDL_EXPORTS", "DATA_STORE")
    assert [name for name in env if name.startswith(unwanted)] == []


def test_user_variables_are_passed_verbatim_and_do_not_override_contract(run: Rig) -> None:
    nasty = {"A": "$(id) `id` \\ ' \" \n end ", "B": "ü\r\n", "EMPTY": "", "MODEL_DIR": "/x", "RANK": "9", "C": "{x}"}
    nasty |= {"PYTHONUNBUFFERED": "", "RESUME": "9", "PATH": f"/nowhere:{os.environ['PATH']}"}
    run.write('printf %s "$PATH" > "$RESULT_DIR/path"; python3 main.py', model={"main.py": DUMP}, user_env=nasty)
    assert run.run() == 0
    env = seen(run)
    kept = ("A", "B", "EMPTY", "RANK", "C", "PYTHONUNBUFFERED")
    assert {name: env[name] for name in kept} == {name: nasty[name] for name in kept}
    assert (env["MODEL_DIR"], env["RESUME"]) == (run.attempt.model, "0")
    assert Path(run.attempt.results, "path").read_text() == nasty["PATH"]


def test_attempt_fails_with_c101_for_invalid_variable_name(run: Rig) -> None:
    run.write("touch $RESULT_DIR/ran", user_env={"a-b": "1"})
    assert run.run() == 127
    assert (run.final().outcome, run.final().error_code) == (Outcome.FAILED, "C101")
    assert "a-b" in run.final().message
    assert not (Path(run.attempt.results) / "ran").exists()


def test_attempt_fails_with_c101_when_user_path_has_no_bash(run: Rig) -> None:
    run.write("true", user_env={"PATH": "/nowhere:/proc"})
    assert run.run() == 127
    final = run.final()
    assert (final.outcome, final.error_code) == (Outcome.FAILED, "C101")
    assert "there is no bash on the PATH that the job was given ('/nowhere:/proc')" in final.message


def test_learner_command_runs_as_shell_text(run: Rig) -> None:
    run.write("# why\nfor i in 1 2; do\n  echo $i\ndone\nfalse || echo \"a  b\" 'c' \\\n  -d | cat\nprintf e >&2\n")
    assert run.run() == 0
    assert run.log() == "1\n2\na  b c -d\ne"


def test_learners_and_stored_files_have_umask_of_submitter(run: Rig) -> None:
    """Also if a process of its own starts the learner, again."""
    program = "umask > $RESULT_DIR/$FFDL_LEARNER_RESTARTS; echo said; [ $FFDL_LEARNER_RESTARTS = 1 ]"
    run.write(program, restart=RESTART_LEARNER, restarts_max=1, umask=0o027)
    assert run.run() == 0, run.errors
    assert [(run.store / name).read_text() for name in "01"] == ["0027\n", "0027\n"]
    stored = ("0", "1", "learner-1/training-log.txt", "_submitted_code/model.zip")
    assert {name: stat.S_IMODE((run.store / name).stat().st_mode) for name in stored} == dict.fromkeys(stored, 0o640)
    assert {stat.S_IMODE((run.store / name).stat().st_mode) for name in ("", "learner-1")} == {0o750}
    private = (run.attempt.event_file("node-0"), run.attempt.final, run.attempt.control)
    assert {stat.S_IMODE(Path(name).stat().st_mode) & 0o077 for name in private if Path(name).exists()} == {0}


def test_controller_imports_only_domain_modules_in_zipapp() -> None:
    code = (
        "import sys, ffdl_batch.controller.head.head_controller, ffdl_batch.controller.node.entry;"
        "import ffdl_batch.controller.loopback_namespace, ffdl_batch.controller.attach.helper;"
        "print(*sorted(m for m in sys.modules if m.startswith('ffdl_batch.domain.')))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = (name.removesuffix("/__init__").replace("/", ".") for name in DOMAIN)
    assert found.split() == sorted(f"ffdl_batch.domain.{name}" for name in names)


ISOLATED = """
import os, socket
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()
socket.create_connection(server.getsockname()).close()
names = [name for _, name in socket.if_nameindex()]
try:
    socket.create_connection(("192.0.2.1", 9), timeout=5)
    reached = "reached"
except OSError as error:
    reached = error.strerror
caps = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd", "CapPrm"))]
print(names, reached, set(caps), os.getuid())
"""


def test_isolated_learner_reaches_only_loopback_or_fails_closed(run: Rig) -> None:
    """Where the kernel refuses user namespaces, the learner is not started at all (fails closed)."""
    launch = run.write("python3 main.py", model={"main.py": ISOLATED})
    controller = (sys.executable, str(build(run)))
    run.write(
        "python3 main.py",
        model={"main.py": ISOLATED},
        learner=type(launch.learner)(isolated_argv(controller), launch.learner.env, protected=launch.learner.protected),
        network=Network(level="none"),
    )
    code = run.run()
    if probe():
        assert (code, run.final().error_code) == (125, "S105")
        assert "no network namespace" in run.final().message
    else:
        assert code == 0, run.log()
        assert run.log() == f"['lo'] Network is unreachable {{'{0:016x}'}} {os.getuid()}\n"


def build(run: Rig) -> Path:
    target = run.base / "c.pyz"
    build_zipapp(target)
    return target


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system; the test run as root does")
def test_full_disk_preserves_exit_status_and_final_record(run: Rig) -> None:
    small = run.base / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        with rig(small) as tight:
            command = "dd if=/dev/zero of=$RESULT_DIR/fill bs=4k; echo full; exit 7"
            tight.write(command, stores=Stores(results=str(run.base / "out")))
            assert tight.run() == 7
            assert (tight.final().exit_code, tight.final().error_code) == (7, "C201")
            assert tight.ended()[0]["exit_code"] == 7
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
