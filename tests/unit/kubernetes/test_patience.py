"""How long pods wait for an image that they cannot have."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ffdl_batch.attempt.layout import AttemptDir
from ffdl_batch.domain.launch.launch_file import encode
from ffdl_kubernetes.lifecycle.termination import lacks_image
from tests.unit.kubernetes.request_rig import PLAIN, plan_of

LACKS = {"reason": "ErrImagePull", "message": "not found"}
PATIENCE_S = 900.0


def ago(seconds: float) -> str:
    """As conditions have it."""
    return datetime.fromtimestamp(time.time() - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(began_s: float, lacking_s: float) -> dict[str, Any]:
    """Its controller runs for `began_s`, and its learner was to begin `lacking_s` ago."""
    return {
        "metadata": {"name": "p"},
        "status": {
            "conditions": [{"type": "Initialized", "status": "True", "lastTransitionTime": ago(lacking_s)}],
            "initContainerStatuses": [{"name": "controller", "state": {"running": {"startedAt": ago(began_s)}}}],
            "containerStatuses": [{"name": "learner", "image": "x:1", "state": {"waiting": LACKS}}],
        },
    }


@pytest.mark.parametrize(("time_s", "lead_s", "began_s", "lacking_s", "is_over"), [
    (None, None, 2000, 880, False),
    (None, None, 2000, 920, True),
    (3600, 60, 1000, 880, False),
    (3600, 60, 1000, 920, True),
    (600, 40, 430, 425, False),  # 0.8 of 560 s
    (600, 40, 460, 455, True),
    (60, 600, 22, 20, False),  # a lead is half of the limit at most
    (60, 600, 26, 24, True),
])  # fmt: skip
def test_image_timeout_ends_before_job_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time_s: int | None, lead_s: int | None, began_s: float,
    lacking_s: float, is_over: bool,
) -> None:  # fmt: skip
    spec = replace(PLAIN, batch=replace(PLAIN.batch, time_s=time_s))
    attempt = AttemptDir(str(tmp_path))
    Path(attempt.launch).write_text(encode(plan_of(spec, lead_s=lead_s).launch))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 1_800_000_000.0)
        why = lacks_image([pod(began_s, lacking_s)], attempt, PATIENCE_S)
    assert why.startswith("the image x:1 cannot be had") if is_over else why == ""


def test_image_timeout_uses_default_without_launch_file(tmp_path: Path) -> None:
    attempt = AttemptDir(str(tmp_path))
    assert lacks_image([pod(1000, 880)], attempt, PATIENCE_S) == ""
    assert lacks_image([pod(1000, 920)], attempt, PATIENCE_S)
