"""Makes the project's virtual environment and installs the package into it, pinned by constraints.txt.

    make_venv.py --venv DIR --extras A,B

Does nothing when the environment was made from the same pyproject.toml and constraints.txt. A package index that
cannot be reached is one sentence. Runs on old interpreters (3.6) too, so that they can say that they are too old.
"""

# ruff: noqa: T201, UP021 - a command line program that old interpreters must be able to read
import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (3, 11)
UNUSED = r"site-packages/(.*/)?(tests?|moto/(?!core|s3|moto_|packages|utilities|cloudwatch|events|iam|sts)\w+)/"
"""Folders of packages that nothing here imports: a fifth of what is installed."""


def main() -> int:
    """Make or update the environment; 0, or 1 and one sentence."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", required=True)
    parser.add_argument("--extras", required=True)
    options = parser.parse_args()
    found = ".".join(str(part) for part in sys.version_info[:2])
    if sys.version_info < NEEDED:
        return fail(f"Python 3.11 or newer is needed, {sys.executable} is {found}; use make PYTHON=/path/to/python3")
    venv = Path(options.venv)
    stamp, python = venv / ".installed", venv / "bin" / "python"
    recipe, present = recipe_hash(), stamp.read_text().split() if stamp.is_file() else []
    wanted = set(options.extras.split(","))
    if python.exists() and present[:1] == [recipe] and wanted <= set(present[1:]):
        return 0
    if not python.exists():
        done = run([sys.executable, "-m", "venv", str(venv)])
        if done.returncode != 0:
            return fail(f"{venv} could not be made: {last_line(done)}; on Debian: apt-get install python3-venv")
    extras = ",".join(sorted(wanted | set(present[1:])))
    print(f"installing ffdl-batch[{extras}] into {venv}", flush=True)
    argv = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", "--no-input"]
    argv += ["--retries", "2", "--constraint", str(ROOT / "constraints.txt"), "--editable", f"{ROOT}[{extras}]"]
    done = run(argv)
    if done.returncode != 0:
        return fail(f"pip could not install the packages; is the package index reachable? ({last_line(done)})")
    compile_packages(python)
    stamp.write_text("\n".join([recipe, *extras.split(",")]) + "\n")
    return 0


def compile_packages(python: Path) -> None:
    """Compile what was installed, on all cores: pip would do it on one, for most of the time that it takes. A file that
    is no Python of this version stays as it is."""
    place = 'import sysconfig; print(sysconfig.get_path("purelib"))'
    done = run([str(python), "-c", place])
    run([str(python), "-m", "compileall", "-q", "-j", "0", "-x", UNUSED, last_line(done)])


def recipe_hash() -> str:
    """Hash of all that decides what is installed."""
    digest = hashlib.sha256(f"{sys.version}{ROOT}".encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def run(argv: "list[str]") -> "subprocess.CompletedProcess[str]":
    """Run quietly; the output is kept for the one sentence."""
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False)


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    """The line that says most: pip's last ERROR, else the last line."""
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return str((errors or lines or ["no output"])[-1])


def fail(text: str) -> int:
    """Say it once."""
    print(f"make_venv: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
