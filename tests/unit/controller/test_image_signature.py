"""The signature of an image file, as a program prints it that stands in for Apptainer."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from ffdl_batch.attempt.phase_files import Ended, PhaseFailed
from ffdl_batch.controller.node.image_signature import check_signature
from ffdl_batch.domain.launch.launch_file import Signature

OURS, THEIRS, IMAGE = "A1" * 20, "B2" * 20, "/images/a.sif"
UNSIGNED = "echo 'FATAL: Failed to verify container: signature not found' >&2; exit 255"


def signed_by(*fingerprints: str) -> str:
    """A shell command that prints what `apptainer verify --json` does."""
    keys = [{"Signer": {"Partition": "FS", "Name": "x", "Fingerprint": one, "DataCheck": True}} for one in fingerprints]
    return f"echo '{json.dumps({'Signatures': len(keys), 'SignerKeys': keys or None})}'"


def check(tmp_path: Path, script: str) -> None:
    program = tmp_path / "apptainer"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    wanted = Signature((str(program), "verify", "--local", "--json", IMAGE), signers=(OURS, "C3" * 20))
    check_signature(wanted, str(tmp_path / "keys"), rest)


def rest() -> None:
    threading.Event().wait(0.01)


@pytest.mark.parametrize("signers", [[OURS], [OURS.lower(), OURS]])
def test_image_with_signature_of_accepted_key_starts(tmp_path: Path, signers: list[str]) -> None:
    check(tmp_path, signed_by(*signers))


@pytest.mark.parametrize(
    ("script", "code", "why"),
    [
        (f"{signed_by()}; {UNSIGNED}", "C107", "FATAL: Failed to verify container: signature not found"),
        (signed_by(), "C107", "it has none"),
        (signed_by(THEIRS), "C107", f"it is signed by {THEIRS}"),
        (signed_by(OURS, THEIRS), "C107", f"it is signed by {OURS}, {THEIRS}"),
        (signed_by(""), "C107", "it is signed by an unknown key"),
        (f"{signed_by(OURS)}; exit 255", "C107", "it has none"),
        ("echo '[' ", "C107", "it has none"),
        ("kill -KILL $$", "S105", "could not verify image"),
    ],
)
def test_image_without_signature_of_accepted_key_fails_attempt(
    tmp_path: Path, script: str, code: str, why: str
) -> None:
    with pytest.raises(PhaseFailed) as failed:
        check(tmp_path, script)
    assert (failed.value.code, IMAGE in str(failed.value), why in str(failed.value)) == (code, True, True), failed.value
    assert code == "S105" or f"image_policy.signers requires a signature by {OURS} or" in str(failed.value)


def test_missing_program_is_fault_of_node(tmp_path: Path) -> None:
    with pytest.raises(PhaseFailed, match=r"no-such-program could not verify image .* cannot start") as failed:
        check_signature(Signature(("no-such-program", IMAGE), (OURS,)), str(tmp_path), rest)
    assert failed.value.code == "S105"


def test_only_global_keyring_and_no_variable_of_user_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPTAINER_VERIFY_KEY", "/home/ada/key.pem")
    monkeypatch.setenv("SINGULARITY_URL", "https://keys.example")
    check(tmp_path, f"env >{tmp_path}/env; {signed_by(OURS)}")
    lines = (tmp_path / "env").read_text().splitlines()
    own = {line for line in lines if line.startswith(("APPTAINER", "SINGULARITY"))}
    keys = f"KEYSDIR={tmp_path}/keys"
    assert own == {f"APPTAINER_{keys}", f"SINGULARITY_{keys}", f"SINGULARITY_SYPGPDIR={tmp_path}/keys"}


def test_end_of_attempt_ends_check_and_is_no_verdict_on_image(tmp_path: Path) -> None:
    def end() -> None:
        raise Ended("stop", "the scheduler ends the job")

    for script in ("exec sleep 600", "kill -TERM $$"):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Ended):
            patch.setitem(globals(), "rest", end)
            check(tmp_path, script)
