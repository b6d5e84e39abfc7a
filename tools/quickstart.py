"""`make quickstart`: the digits example from submission to result on this machine, by the commands that users type.

Everything lies in build/quickstart: a state directory and a daemon of its own, so that neither a configuration nor a
running service is needed or touched. Exit status: 0 trained, else that of the command that failed.
"""

# ruff: noqa: T201 - this is a command line program
from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ffdl_batch.config.daemon_location import MAX_SOCKET_PATH, PlaceRefused, check_directory

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "docs" / "examples" / "digits"
PLACE = ROOT / "build" / "quickstart"
BIN = Path(sys.executable).parent
SHOWN = Path(os.path.relpath(BIN))


class StepFailed(Exception):
    """A command that failed has said why; `status` is its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


def main() -> int:
    """Fetch the data, submit, follow, report."""
    try:
        call([sys.executable, str(EXAMPLE / "fetch_data.py")], dict(os.environ))
        env = environment(socket_path())
        try:
            return train(env)
        finally:  # the daemon is of this run alone
            subprocess.run([str(BIN / "ffdl"), "daemon", "stop"], env=env, stdout=subprocess.DEVNULL, check=False)
    except StepFailed as failed:
        return failed.status
    except PlaceRefused as refusal:
        print(f"quickstart: {refusal}", file=sys.stderr)
        return refusal.exit_code
    except KeyboardInterrupt:
        return 130


def socket_path() -> Path:
    """Beside the state, or in a closed directory of the user's under /tmp where that path is too long for a socket."""
    PLACE.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = PLACE / "ffdl.sock"
    if len(os.fsencode(beside)) <= MAX_SOCKET_PATH:
        return beside
    directory = Path(tempfile.gettempdir()) / f"ffdl-quickstart-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    check_directory(directory, closed=True)
    return directory / f"{hashlib.sha256(os.fsencode(PLACE)).hexdigest()[:12]}.sock"


def environment(socket: Path) -> dict[str, str]:
    """Our commands and the environment's Python (which has numpy) first on the PATH; nothing of a site's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FFDL_", "SBATCH_", "SLURM_"))}
    own = {"FFDL_STATE_DIR": str(PLACE), "FFDL_SOCKET": str(socket)}
    return {**kept, **own, "PATH": f"{BIN}{os.pathsep}{kept.get('PATH', os.defpath)}"}


def train(env: dict[str, str]) -> int:
    """Submit, follow the log, and print what came out; 0 where the job is COMPLETED."""
    manifest, model = EXAMPLE / "manifest.yml", EXAMPLE / "model"
    submit = ["ffdl-submit", "--backend", "local", "--parsable", str(manifest), str(model)]
    job_id = call(submit, env, capture=True).strip()
    print(f"Submitted batch job {job_id}", flush=True)
    call(["ffdl", "logs", "-f", job_id], env)
    status = subprocess.run([str(BIN / "ffdl"), "wait", job_id], env=env, stdout=subprocess.DEVNULL, check=False)
    job = json.loads(call(["ffdl", "show", "--json", job_id], env, capture=True))
    job = job.get("job", job)
    print()
    print(f"state     {job['state']}" + (f" ({job['message']})" if job["message"] else ""))
    print(f"accuracy  {accuracy(Path(job['results']))}")
    print(f"network   {job['network']}")
    print(f"results   {job['results']}")
    where = f"FFDL_STATE_DIR={env['FFDL_STATE_DIR']} FFDL_SOCKET={env['FFDL_SOCKET']}"
    print(f"again     {where} {SHOWN / 'ffdl'} show {job_id}")
    print(f"next      . {SHOWN / 'activate'}    # puts ffdl and ffdl-submit on this shell's PATH")
    return status.returncode


def accuracy(results: Path) -> str:
    """What the training wrote, or why there is nothing."""
    try:
        return str(json.loads((results / "result.json").read_text(encoding="utf-8"))["accuracy"])
    except (OSError, ValueError, KeyError) as error:
        return f"unknown ({error})"


def call(argv: list[str], env: dict[str, str], *, capture: bool = False) -> str:
    """Show and run one command; its standard output where it is captured."""
    program = Path(argv[0])
    path = program if program.is_absolute() else BIN / program
    if not program.is_absolute():
        print("$ " + " ".join([str(SHOWN / program), *(shown(word) for word in argv[1:])]), flush=True)
    done = subprocess.run([str(path), *argv[1:]], env=env, stdout=subprocess.PIPE if capture else None, check=False)
    if done.returncode != 0:
        raise StepFailed(done.returncode)
    return done.stdout.decode() if capture else ""


def shown(word: str) -> str:
    """A path as it reads from here."""
    return os.path.relpath(word) if word.startswith(str(ROOT)) else word


if __name__ == "__main__":
    sys.exit(main())
