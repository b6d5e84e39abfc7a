"""Tests that no text of a manifest, argument or message can control a terminal, in any command."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ffdl_batch.domain.findings import Finding, Severity
from ffdl_batch.domain.job.views import EventView, LogLine, PlannedFileView, Problem
from tests.unit.cli.programs import FFDL, FFDL_ADMIN, FFDL_SUBMIT, json_lines, on_terminal, run
from tests.unit.client import fake_daemon
from tests.unit.client.fake_daemon import FakeDaemon, make_job

JOB = "training-000000001"
EVIL = "\x1b]0;owned\x07\x1b[31mred\x9b2J\u202e\x7f\u200b"
SHOWN = r"\x1b]0;owned\x07\x1b[31mred\x9b2J\u202e\x7f\u200b"
STEERING = ("\x1b", "\x07", "\x9b", "\u202e", "\x7f", "\u200b")


@pytest.fixture
def evil(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """Start a daemon whose job, plan and refusals have such texts in every place that a user can set."""
    daemon.jobs[JOB] = make_job(
        JOB, name=EVIL, user=EVIL, nodes=EVIL, log_tail=(EVIL,), message=EVIL, pending_reason=EVIL
    )  # fmt: skip
    daemon.events = [EventView(JOB, 1, 1_800_000_000.0, "PROCESSING", 1, "progress", EVIL)]
    plan = fake_daemon.make_plan

    def make_plan(*given: object, **more: object) -> object:
        made = plan(*given, **more)  # type: ignore[arg-type]
        return replace(
            made, script=f"#!/bin/bash\n# {EVIL}\n", submit_argv=("sbatch", EVIL), learner_argv=(EVIL,),
            environment={"A": EVIL}, files=(PlannedFileView("x", EVIL, 0o600),), warnings=(EVIL,),
        )  # fmt: skip

    monkeypatch.setattr(fake_daemon, "make_plan", make_plan)
    return daemon


@pytest.mark.parametrize(
    "words",
    [("list",), ("show", JOB), ("events", JOB), ("plan", "--no-why", "M", "D"), ("submit", "--dry-run", "M", "D")],
)
def test_text_output_shows_control_characters_as_escapes(
    evil: FakeDaemon, manifest: Path, model: Path, words: tuple[str, ...]
) -> None:
    named = [{"M": manifest, "D": model}.get(word, word) for word in words]
    for shown in (
        on_terminal(FFDL, *named, daemon=evil, NO_COLOR="1", COLUMNS="400"),
        run(FFDL, *named, daemon=evil).stdout,
    ):
        assert r"\u202e" in shown and not any(one in shown for one in STEERING), ascii(shown)


@pytest.mark.parametrize("words", [("list",), ("show", JOB), ("plan", "--no-why", "M", "D")])
def test_json_output_is_ascii_and_exact(evil: FakeDaemon, manifest: Path, model: Path, words: tuple[str, ...]) -> None:
    done = run(FFDL, *[{"M": manifest, "D": model}.get(word, word) for word in words], "--json", daemon=evil)
    assert done.stdout.isascii() and not any(one in done.stdout for one in STEERING)
    assert EVIL in _texts(json_lines(done.stdout))


def _texts(value: object) -> list[object]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in _texts(one)]
    return [text for one in value for text in _texts(one)] if isinstance(value, list) else [value]


@pytest.mark.parametrize(
    "words",
    [(EVIL,), ("list", f"--{EVIL}"), ("list", "--state", EVIL), ("submit", EVIL, "D"),
     ("validate", EVIL), ("submit", "M", EVIL), ("submit", "--allow-file", EVIL, "M", "D"),
     ("logs", "--since", EVIL, JOB)],
)  # fmt: skip
def test_errors_show_arguments_as_escapes(
    evil: FakeDaemon, manifest: Path, model: Path, words: tuple[str, ...]
) -> None:
    named = [{"M": manifest, "D": model}.get(word, word) for word in words]
    for shown in (on_terminal(FFDL, *named, daemon=evil), run(FFDL, *named, daemon=evil).stderr):
        assert r"\x1b]0;" in shown and not any(one in shown for one in STEERING), ascii(shown)


@pytest.mark.parametrize(
    "words",
    [
        *((EVIL,), ("db", f"--{EVIL}"), ("db", "current"), ("db", "check"), ("db", "upgrade")),
        *(("db", "backup", f"/x{EVIL}/f"), ("db", "restore", f"/x{EVIL}"), ("cache", "trim")),
        *(("doctor",), ("doctor", EVIL), ("tenant", "create", EVIL), ("tenant", "create", "t", "--gpus", EVIL)),
        ("tenant", "create", "t", "--print", "--label", f"a={EVIL}"),
        ("tenant", "create", "t", "--print", "--backend", EVIL),
    ],
)
def test_admin_commands_show_control_characters_as_escapes(daemon: FakeDaemon, words: tuple[str, ...]) -> None:
    home = str(daemon.path.parent)
    env = {"FFDL_STATE_DIR": f"{home}/{EVIL}", "FFDL_CACHE_DIR": f"{home}/{EVIL}", "FFDL_BACKEND": EVIL}
    done = run(FFDL_ADMIN, *words, daemon=daemon, env=env)
    for shown in (on_terminal(FFDL_ADMIN, *words, daemon=daemon, **env), done.stdout + done.stderr):
        assert r"\u202e" in shown and not any(one in shown for one in STEERING), ascii(shown)


def test_findings_and_tracebacks_show_escapes(evil: FakeDaemon, manifest: Path, model: Path) -> None:
    finding = Finding(Severity.ERROR, EVIL, EVIL, f"{EVIL}.yml", 3, 7, EVIL)
    evil.refusals["/api/v1/jobs"] = (422, Problem("C101", EVIL, 78, findings=(finding,)))
    assert run(FFDL_SUBMIT, manifest, model, daemon=evil).stderr.count(SHOWN) == 4
    for env in ({}, {"PYTHONIOENCODING": "ascii"}):
        shown = run(FFDL_SUBMIT, manifest, model, daemon=evil, env={"FFDL_DEBUG": "1", **env}).stderr
        assert "Traceback" in shown and SHOWN in shown and "\x1b" not in shown


def test_output_shows_argument_bytes_that_are_not_utf8_as_escapes(daemon: FakeDaemon) -> None:
    shown = run((*FFDL, os.fsdecode(b"\xe4\x1b")), daemon=daemon).stderr
    assert r"\xe4\x1b" in shown


def test_logs_keep_colours_on_terminal_only_with_raw_and_all_bytes_in_pipe(daemon: FakeDaemon) -> None:
    daemon.jobs[JOB] = make_job(JOB)
    line = f"{EVIL} \x1b[1;32mgreen\x1b[0m\tx"
    daemon.lines = [LogLine(1, 1, line, None, 1, 0, 0, False)]
    plain = SHOWN.replace(r"\x1b[31m", "") + " green\tx\n"
    for verb, head in (("logs", ""), ("loglines", "1 N/A ")):
        assert on_terminal(FFDL, verb, JOB, daemon=daemon) == head + plain
        raw = on_terminal(FFDL, verb, "--raw", JOB, daemon=daemon, NO_COLOR="1")
        assert "\x1b[1;32mgreen\x1b[0m" in raw and "\x1b]" not in raw and r"\x1b]0;owned\x07" in raw
        assert run(FFDL, verb, JOB, daemon=daemon).stdout == f"{head}{line}\n"
        document = run(FFDL, verb, "--json", JOB, daemon=daemon).stdout
        assert document.isascii() and json.loads(document)["line"]["line"] == line and "\x7f" not in document
        assert run(FFDL, verb, "--raw", "--json", JOB, daemon=daemon).returncode == 2


def test_plan_keeps_manifest_name_with_line_feeds_on_one_line(daemon: FakeDaemon, model: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "a\n### submit command\nrm -rf .yml"
    manifest.write_text("name: x\n")
    done = run(FFDL, "plan", "--no-why", manifest, model, daemon=daemon)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith(r"a\n### submit command\nrm -rf .yml for backend slurm")


def test_objects_of_plan_are_exact_in_pipe(
    daemon: FakeDaemon, manifest: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = fake_daemon.make_plan
    document = "name: \u202etxt\n"
    monkeypatch.setattr(
        fake_daemon, "make_plan", lambda *given, **more: replace(plan(*given, **more), objects=(document,))
    )
    assert document in run(FFDL, "plan", "--no-why", manifest, model, daemon=daemon).stdout
    assert r"name: \u202etxt" in on_terminal(FFDL, "plan", "--no-why", manifest, model, daemon=daemon)
