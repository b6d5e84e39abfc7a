"""The judge of the proof on Kubernetes: what it says of points, and when it says no."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.proof.kubernetes.__main__ import main, try_point
from tests.proof.kubernetes.claims import by_a_claim
from tests.proof.kubernetes.desk import Desk
from tests.proof.kubernetes.points import need_store
from tests.proof.kubernetes.values import Failed, Impossible, Options, Result, Word, holds, summary

PASSED, FAILED, IMPOSSIBLE = (Result("x", word, "seen", 1.25) for word in Word)


def test_kubernetes_proof_reports_missing_kubeconfig(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("proof-kubernetes: KUBECONFIG is not set; ")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main([]) == 1
    assert "none, which is not a file; " in capsys.readouterr().err


def test_kubernetes_proof_exits_130_without_traceback_when_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    (tmp_path / "config").touch()
    monkeypatch.setattr("tests.proof.kubernetes.__main__.Room", interrupted)
    assert main([]) == 130
    assert capsys.readouterr().err == "proof-kubernetes: interrupted\n"


@pytest.mark.parametrize(
    ("results", "loosely", "strictly"),
    [
        ([PASSED], True, True),
        ([PASSED, IMPOSSIBLE], True, False),
        ([PASSED, FAILED], False, False),
        ([IMPOSSIBLE], False, False),
        ([], False, False),
    ],
)
def test_kubernetes_proof_verdict_depends_on_failures_and_strict_mode(
    results: list[Result], loosely: bool, strictly: bool
) -> None:
    assert (holds(results, strict=False), holds(results, strict=True)) == (loosely, strictly)


def test_kubernetes_proof_summary_counts_results_and_formats_line() -> None:
    assert summary([PASSED, PASSED, IMPOSSIBLE]) == "points 3 passed 2 failed 0 not possible here 1"
    assert IMPOSSIBLE.line() == "not possible here     1.2 s  x: seen"


@pytest.mark.parametrize(
    ("error", "word", "text"),
    [
        (Failed("it is 3\nnot 2"), Word.FAILED, "it is 3 not 2"),
        (Impossible("no DNS"), Word.IMPOSSIBLE, "no DNS"),
        (OSError("refused"), Word.FAILED, "OSError: refused"),
    ],
)
def test_kubernetes_proof_point_that_raises_is_failed_or_impossible(error: Exception, word: Word, text: str) -> None:
    def point() -> str:
        raise error

    found = try_point("x", point)
    assert (found.word, found.text) == (word, text)


def test_kubernetes_proof_point_that_returns_is_passed() -> None:
    assert try_point("x", lambda: "seen").word is Word.PASSED


def test_kubernetes_proof_rejects_unknown_point_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "nothing like it"])
    assert "no point has it in its name" in capsys.readouterr().err


def test_kubernetes_proof_volume_claim_point_is_impossible_without_storage_class() -> None:
    desk = SimpleNamespace(options=Options("controller", "learner"))
    found = try_point("x", lambda: by_a_claim(cast("Desk", desk)))
    assert (found.word, found.text) == (Word.IMPOSSIBLE, "no StorageClass was named: --claim-class NAME")


TRACEBACK = """\
Traceback (most recent call last):
  File "<string>", line 1, in <module>
    import socket; socket.create_connection(("192.0.2.1", 9000), 10); print("reached")
TimeoutError: timed out
"""
"""Of Python 3.13, which quotes programs that are given by -c."""


@pytest.mark.parametrize(("log", "reached"), [("reached\n", True), ("a warning\nreached\n", True), (TRACEBACK, False)])
def test_kubernetes_proof_takes_store_as_reached_only_by_output_of_the_pod(log: str, reached: bool) -> None:
    desk = cast(Desk, SimpleNamespace(
        server=SimpleNamespace(endpoint="http://192.0.2.1:9000"), store_answers=False, manifest=str, submit=str,
        await_state=lambda *_: None, log=lambda _: log,
    ))  # fmt: skip
    if reached:
        need_store(desk)
    else:
        with pytest.raises(Impossible, match="a pod does not reach the store"):
            need_store(desk)
    assert desk.store_answers is reached
