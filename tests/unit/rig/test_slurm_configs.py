"""The fragments of slurm-configs/: rendered for real, refused with a place, and prolog and epilog run as programs."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.cluster.rig.site import overlay_for

CONFIGS = Path(__file__).resolve().parents[3] / "slurm-configs"
OVERLAYS = sorted(path.stem for path in (CONFIGS / "overlays").glob("*.env"))


@functools.cache
def renderer() -> ModuleType:
    """Import render.py, and undo what it changes for its own process."""
    search, no_bytecode = sys.path[:], sys.dont_write_bytecode
    spec = importlib.util.spec_from_file_location("render_slurm_configs", CONFIGS / "render.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:], sys.dont_write_bytecode = search, no_bytecode
    return module


def render(out: Path, *arguments: str, values: Path = CONFIGS / "values.env") -> subprocess.CompletedProcess[str]:
    """Run render.py in this process: a new interpreter takes five times as long."""
    argv = ["--values", str(values), *arguments, "--out", str(out)]
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        status = renderer().main(argv)
    return subprocess.CompletedProcess(argv, status, printed.getvalue(), errors.getvalue())


def test_render_ignores_bytecode_that_another_process_is_writing(tmp_path: Path) -> None:
    source = tmp_path / "slurm-configs"
    shutil.copytree(CONFIGS, source, ignore=shutil.ignore_patterns("__pycache__"))
    cache = source / "libexec" / "__pycache__"
    cache.mkdir()
    (cache / "words.cpython-311.pyc.140").write_bytes(b"\xff\x00half")
    argv = [sys.executable, str(source / "render.py"), "--values", str(source / "values.env")]
    values = site_values(tmp_path / "v", ACCOUNTING_STORAGE_HOST="db")
    done = subprocess.run([*argv, *values, "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list((tmp_path / "out").rglob("*.pyc*"))


def site_values(path: Path, **values: str) -> list[str]:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return ["--values", str(path)]


def _is_rendered(path: Path) -> bool:
    beside = path.name in {"README.md", "render.py", "values.env"} or "overlays" in path.parts
    return not beside and "__pycache__" not in path.parts


OLDER, NEWER = ("slurm-20.11", "slurm-22.05", "slurm-23.02"), ("slurm-24.11", "slurm-25.11")
LINES = {
    # slurmctld takes this word in SchedulerParameters, too, and ignores it there.
    "SlurmctldParameters=preempt_send_user_signal": OLDER,
    "PreemptParameters=send_user_signal": NEWER,
    "MaxBatchRequeue=7": (OLDER[-1], *NEWER),
}
"""Of slurm.conf, with the overlays that have them."""


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_render_leaves_no_placeholder_and_sets_options_of_slurm_release(tmp_path: Path, overlay: str) -> None:
    values = {"ACCOUNTING_STORAGE_HOST": "db", "REQUEUE_DELAY_S": "7", "MAX_BATCH_REQUEUE": "7"}
    site = site_values(tmp_path / "site.env", **values)
    done = render(tmp_path / "out", "--overlay", overlay, *site)
    assert (done.returncode, done.stderr) == (0, "")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    expected = {path.relative_to(CONFIGS) for path in CONFIGS.rglob("*") if path.is_file() and _is_rendered(path)}
    assert {path.relative_to(tmp_path / "out") for path in files} == expected
    assert not [path for path in files if re.search("@[A-Z_]+@", path.read_text())]
    assert done.stdout == f"{len(files)} files written below {tmp_path / 'out'}\n"
    conf = (tmp_path / "out/slurm.conf.d/ffdl.conf").read_text()
    found = [line for line in conf.splitlines() if line in LINES or "send_user_signal" in line]
    assert sorted(found) == sorted(line for line, overlays in LINES.items() if overlay in overlays)
    assert ("requeue_delay=7" in conf) == (overlay == "slurm-25.11")
    assert ('case "scontrol" in' in (tmp_path / "out/prolog.d/50-ffdl").read_text()) == (overlay == "slurm-20.11")


def test_render_rejects_missing_site_value_with_its_place(tmp_path: Path) -> None:
    done = render(tmp_path / "out")
    assert done.returncode == 78
    assert "ffdl-accounting.conf:4: ACCOUNTING_STORAGE_HOST has no value yet" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("KILL_WIAT_S=3", ":1: KILL_WIAT_S is not a known value"),
        ("not an assignment", ":1: expected NAME=value"),
        ("KILL_WAIT_S=1\nKILL_WAIT_S=2", ":2: KILL_WAIT_S is set twice"),
        ("KILL_WAIT_S=@KILL_WAIT_S@", ":1: KILL_WAIT_S refers to itself"),
        ("KILL_WAIT_S=@NOWHERE@", ":1: unknown placeholder @NOWHERE@"),
    ],
)
def test_render_exits_78_with_file_and_line_of_values_mistake(tmp_path: Path, line: str, message: str) -> None:
    site = tmp_path / "site.env"
    site.write_text(f"{line}\nACCOUNTING_STORAGE_HOST=db\n")
    done = render(tmp_path / "out", "--values", str(site))
    assert done.returncode == 78
    assert f"{site}{message}" in done.stderr


def test_render_prefers_later_values_file_over_overlay(tmp_path: Path) -> None:
    site = site_values(tmp_path / "site.env", ACCOUNTING_STORAGE_HOST="db", JOB_MARK_SOURCE="env")
    render(tmp_path / "out", "--overlay", "slurm-20.11", *site)
    assert 'case "env" in' in (tmp_path / "out" / "prolog.d" / "50-ffdl").read_text()


def test_render_lists_known_overlays_if_overlay_is_unknown(tmp_path: Path) -> None:
    done = render(tmp_path / "out", "--overlay", "slurm-19.05")
    assert done.returncode == 78
    assert all(name in done.stderr for name in OVERLAYS)


@pytest.mark.parametrize(("version", "overlay"), [
    ("26.05.5", "slurm-25.11"), ("25.11.2", "slurm-25.11"), ("25.05.1", "slurm-24.11"), ("24.05.2", "slurm-23.02"),
    ("23.11.4", "slurm-23.02"), ("22.05.8", "slurm-22.05"), ("20.11.7", "slurm-20.11"), ("19.05.1", "slurm-20.11"),
])  # fmt: skip
def test_overlay_for_selects_overlay_for_slurm_version(version: str, overlay: str) -> None:
    assert overlay_for(version) == overlay


class Hooks:
    """Rendered prolog and epilog with their places below a temporary directory."""

    def __init__(self, tmp_path: Path, **values: str) -> None:
        self.run_dir, self.libexec, self.out = tmp_path / "run", tmp_path / "libexec", tmp_path / "out"
        self.libexec.mkdir()
        places = {"FFDL_RUN": str(self.run_dir), "FFDL_LIBEXEC": str(self.libexec), **values}
        assert render(self.out, *site_values(tmp_path / "v", ACCOUNTING_STORAGE_HOST="db", **places)).returncode == 0

    def install(self, name: str, script: str) -> None:
        path = self.libexec / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def call(self, name: str, comment: str | None, hook: str = "50-ffdl", **variables: str) -> int:
        env = {"SLURM_JOB_ID": "41", **variables} | ({} if comment is None else {"SLURM_JOB_COMMENT": comment})
        return subprocess.run([str(self.out / f"{name}.d" / hook)], env=env, check=False).returncode


TIME_IS_OVER = 'until grep -q "^State:.S" "/proc/$PPID/status"; do sleep 0.01; done; kill -s ALRM "$PPID"'
"""Of a program that has begun: `timeout`, its parent, waits by then, and takes the signal for the end of the time."""


@pytest.mark.parametrize("comment", [None, "", "my run", "not ffdl-batch:x"])
def test_prolog_ignores_job_without_mark(tmp_path: Path, comment: str | None) -> None:
    hooks = Hooks(tmp_path)
    hooks.install("prolog", f"touch {tmp_path}/ran")
    assert hooks.call("prolog", comment) == 0
    assert not (tmp_path / "ran").exists()
    assert not hooks.run_dir.exists()


def test_prolog_failure_exits_0_and_keeps_error_until_epilog(tmp_path: Path) -> None:
    hooks = Hooks(tmp_path)
    hooks.install("prolog", "echo no slot is free; exit 3")
    hooks.install("epilog", f"rm -r {hooks.run_dir}/job-41")
    assert hooks.call("prolog", "ffdl-batch:token") == 0
    assert (hooks.run_dir / "job-41" / "error").read_text() == "no slot is free\n"
    assert hooks.call("epilog", None) == 0
    assert not (hooks.run_dir / "job-41").exists()


def test_epilog_failure_marks_leftover_files_for_next_prolog(tmp_path: Path) -> None:
    hooks = Hooks(tmp_path)
    hooks.install("prolog", "exit 0")
    hooks.install("epilog", "exit 4")
    hooks.call("prolog", "ffdl-batch:token")
    (hooks.run_dir / "job-41" / "network").touch()
    assert hooks.call("epilog", None) == 0
    left = {path.name for path in (hooks.run_dir / "job-41").iterdir()}
    assert left == {"ended", "epilog.log", "prolog.log"}


def test_prolog_is_terminated_on_timeout_and_reports_it(tmp_path: Path) -> None:
    hooks = Hooks(tmp_path, NETWORK_TIMEOUT_S="42")
    hooks.install("prolog", f'echo began; touch "$FFDL_TEST_DIR/network"; {TIME_IS_OVER}; exec sleep 30')
    assert hooks.call("prolog", "ffdl-batch:token", FFDL_TEST_DIR=str(hooks.run_dir / "job-41")) == 0
    error = (hooks.run_dir / "job-41" / "error").read_text()
    assert error == "began\nthe prolog did not end within 42 s\n"
    assert not (hooks.run_dir / "job-41" / "network").exists()


def test_prolog_passes_full_comment_and_removes_files_of_earlier_start(tmp_path: Path) -> None:
    hooks = Hooks(tmp_path)
    hooks.install("prolog", f'printf "%s" "$1" >{tmp_path}/told')
    (hooks.run_dir / "job-41").mkdir(parents=True)
    (hooks.run_dir / "job-41" / "network").touch()
    assert hooks.call("prolog", "ffdl-batch:job/2 $(id) '") == 0
    assert (tmp_path / "told").read_text() == "ffdl-batch:job/2 $(id) '"
    assert {path.name for path in (hooks.run_dir / "job-41").iterdir()} == {"prolog.log"}


@pytest.mark.parametrize(
    ("program", "logged"),
    [
        ("exit 0", None),
        (
            "echo \"'%b /' \\$(id) is left\"; exit 1",
            "-t ffdl-epilog -- job 41: data stores were not unmounted: '%b /' $(id) is left",
        ),
        (None, "unmount"),
    ],
)
def test_mounts_epilog_exits_0_and_logs_what_is_left(tmp_path: Path, program: str | None, logged: str | None) -> None:
    hooks = Hooks(tmp_path)
    hooks.install("logger", f'printf "%s" "$*" >{tmp_path}/logged')
    if program is not None:
        hooks.install("unmount", program)
    hook = hooks.out / "epilog.d" / "60-ffdl-mounts"
    hook.write_text(hook.read_text().replace("PATH=/usr/sbin", f"PATH={hooks.libexec}:/usr/sbin"))
    assert hooks.call("epilog", None, hook.name) == 0
    said = (tmp_path / "logged").read_text() if (tmp_path / "logged").exists() else None
    assert said == logged or (program is None and said is not None and "libexec/unmount" in said)


def _asking_hooks(tmp_path: Path, scontrol: str) -> Hooks:
    """Hooks of a release whose prologs are not told the comment, and a program in the place of scontrol."""
    hooks = Hooks(tmp_path, JOB_MARK_SOURCE="scontrol")
    hooks.install("prolog", f'printf "%s" "$1" >{tmp_path}/told')
    hooks.install("scontrol", scontrol)
    hook = hooks.out / "prolog.d" / "50-ffdl"
    hook.write_text(hook.read_text().replace("PATH=/usr/sbin", f"PATH={hooks.libexec}:/usr/sbin"))
    return hooks


TASKS = """\
JobId=44 ArrayJobId=41 ArrayTaskId=1 JobName=x Comment=ffdl-batch:job/9 StdErr=/dev/null
JobId=41 ArrayJobId=41 ArrayTaskId=3 JobName=x AdminComment=ffdl-batch:job/8 {comment}StdErr=/dev/null
JobId=411 ArrayJobId=41 ArrayTaskId=2 JobName=x Comment=ffdl-batch:job/7 StdErr=/dev/null"""


@pytest.mark.parametrize(
    ("comment", "told"), [("Comment=ffdl-batch:job/2 my run ", "ffdl-batch:job/2"), ("Comment=mine ", None), ("", None)]
)
def test_prolog_takes_own_comment_from_listing_of_array_tasks(tmp_path: Path, comment: str, told: str | None) -> None:
    """Its number is the array's, by which scontrol shows every task."""
    listed = TASKS.format(comment=comment)
    hooks = _asking_hooks(tmp_path, f'[ "$*" = "-o show job 41" ] && cat <<EOF\n{listed}\nEOF')
    assert hooks.call("prolog", None) == 0
    assert ((tmp_path / "told").read_text() if (tmp_path / "told").exists() else None) == told
    assert (hooks.run_dir / "job-41").exists() == (told is not None)


@pytest.mark.parametrize("scontrol", ["echo no contact >&2; exit 1", "echo JobId=411 Comment=ffdl-batch:job/2"])
def test_prolog_reports_error_if_scontrol_returns_no_comment(tmp_path: Path, scontrol: str) -> None:
    hooks = _asking_hooks(tmp_path, scontrol)
    (hooks.run_dir / "job-41").mkdir(parents=True)
    for name in ("network", "ended", "rules"):  # of an earlier start
        (hooks.run_dir / "job-41" / name).touch()
    assert hooks.call("prolog", None) == 0
    assert {path.name for path in (hooks.run_dir / "job-41").iterdir()} == {"error", "rules"}
    assert "scontrol did not show the job's comment on this node" in (hooks.run_dir / "job-41" / "error").read_text()
    assert not (tmp_path / "told").exists()


def test_prolog_kills_hanging_scontrol_and_reports_error(tmp_path: Path) -> None:
    hooks = _asking_hooks(tmp_path, f"trap '' TERM; echo asked >>{tmp_path}/asked; {TIME_IS_OVER}; exec sleep 30")
    hook = hooks.out / "prolog.d" / "50-ffdl"
    assert "timeout -k 2 10 scontrol" in hook.read_text()
    hook.write_text(hook.read_text().replace("timeout -k 2 10", "timeout -k 0.2 60"))
    assert hooks.call("prolog", None) == 0
    assert "scontrol did not show the job's comment on this node" in (hooks.run_dir / "job-41" / "error").read_text()
    assert (tmp_path / "asked").read_text() == "asked\n" and not (tmp_path / "told").exists()


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from ffdl_network import commands, hostlist, layout, mark, vxlan
for text in sys.argv[2:]:
    try:
        print(hostlist.expand(text))
    except ValueError as error:
        print("refused:", error)
for text in ("m:job/1", "m:job/62 mine", "n:job/1", "m:", "m:egress/3/a-b.c:80,10.0.0.1:65535 x"):
    print(mark.read(text, "m:"))
for text in sys.stdin.read().split("|"):
    try:
        print(mark.read(text, "m:"))
    except commands.Trouble as error:
        print(str(error)[:15])
jobs = [layout.Job(number, 1, ("a", "b"), 0, 1) for number in (1, 2**24 - 1, 2**24, 67108863)]
print([(vxlan.vni(job), vxlan.mac(job, 249)) for job in jobs])
"""


LOOK_UP = """
import sys, types
sys.path.insert(0, sys.argv[1])
from ffdl_network import commands, destinations
try:
    print(destinations._look_up(sys.argv[2], types.SimpleNamespace(command_timeout_s=float(sys.argv[3]))))
except commands.Trouble as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("host", "timeout_s", "printed"),
    [
        ("localhost", "60", "['127.0.0.1']"),
        ("a" * 64, "60", f"no IPv4 address for the destination {'a' * 64} ("),
        ("localhost", "0", "the destination localhost cannot be looked up: "),
    ],
)
def test_egress_destination_is_blamed_only_if_resolver_answers(
    tmp_path: Path, host: str, timeout_s: str, printed: str
) -> None:
    render(tmp_path / "out", *site_values(tmp_path / "v", ACCOUNTING_STORAGE_HOST="db"))
    argv = [sys.executable, "-I", "-S", "-c", LOOK_UP, str(tmp_path / "out" / "libexec"), host, timeout_s]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.startswith(printed)


NO_DESTINATIONS = ("", "a", "a:80,", "a:08", "a:0", "a:65536", "-a:80", "a_b:80", "$(id):80", ",".join(["a:80"] * 17))


def test_network_values_are_derived_from_node_list_mark_and_job_number(tmp_path: Path) -> None:
    render(tmp_path / "out", *site_values(tmp_path / "v", ACCOUNTING_STORAGE_HOST="db"))
    good = {
        "n1": ["n1"],
        "n[08-11]": ["n08", "n09", "n10", "n11"],
        "r[0-1]n[1,3],login": ["r0n1", "r0n3", "r1n1", "r1n3", "login"],
        "a[1-2]b": ["a1b", "a2b"],
    }
    bad = ("", "n[1", "n]1", "n[2-1]", "n[1-251]", "n[a]", "n[1-2],n1", "n1;id", "n[[1]]", "-n")
    unreadable = ["m:x", "m:job", "m:job/0", "m:job/01", "m:job/63", "m:job/1\n", "m:job/2\nmore", "m:job/2;id"]
    unreadable += ["m:job/1/a:80", "m:egress/2", *(f"m:egress/3/{to}" for to in NO_DESTINATIONS)]
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM, str(tmp_path / "out" / "libexec"), *good, *bad]
    done = subprocess.run(argv, input="|".join(unreadable), capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[: len(good)] == [str(tuple(names)) for names in good.values()]
    marks = lines[len(good) + len(bad) :]
    assert all(line.startswith("refused: ") for line in lines[len(good) : len(good) + len(bad)])
    to = "Destination(host='a-b.c', port=80), Destination(host='10.0.0.1', port=65535)"
    requests = [f"NetworkRequest(learners={number}, destinations=())" for number in (1, 62)]
    assert marks[:5] == [*requests, "None", "None", f"NetworkRequest(learners=3, destinations=({to}))"]
    assert marks[5:-1] == ["unreadable mark"] * len(unreadable)
    numbers = [(2, "000002"), (1, "000001"), (2, "000002"), (4, "000004")]
    told = [(vni, f"02:{text[:2]}:{text[2:4]}:{text[4:]}:00:f9") for vni, text in numbers]
    assert lines[-1] == str(told)
