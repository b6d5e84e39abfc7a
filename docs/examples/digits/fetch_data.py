#!/usr/bin/env python3
"""Puts the UCI handwritten digits into ``data/digits/`` beside this file.

The data come out of scikit-learn's wheel (BSD licence; the set is UCI's "Optical Recognition of Handwritten Digits",
test part). Nothing of scikit-learn is installed. The wheel named here is only a container for the data file, so the
same one serves every machine.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "scikit-learn==1.7.2"
WHEEL_OF = ("--python-version=3.12", "--implementation=cp", "--abi=cp312", "--platform=manylinux2014_x86_64")
MEMBER = "sklearn/datasets/data/digits.csv.gz"
SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
TARGET = Path(__file__).resolve().parent / "data" / "digits" / "digits.csv.gz"


class FetchError(Exception):
    """The data could not be had; the text says why and what to do."""


def main() -> int:
    """Fetch the data unless they are there; 0, or 69 with one sentence when they cannot be had."""
    try:
        if is_good(TARGET):
            print(f"digits are already in {TARGET.parent}")
        else:
            save(extract(download), TARGET)
            print(f"digits are in {TARGET.parent}")
    except FetchError as error:
        print(f"fetch_data: {error}", file=sys.stderr)
        return 69
    return 0


def is_good(path: Path) -> bool:
    """Whether the file is there and is the one that this example was made with."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == SHA256


def extract(fetch) -> bytes:
    """The data file out of the wheel that `fetch(directory)` puts somewhere."""
    with tempfile.TemporaryDirectory(prefix="digits-") as folder:
        wheel = fetch(Path(folder))
        try:
            with zipfile.ZipFile(wheel) as archive:
                content = archive.read(MEMBER)
        except (KeyError, zipfile.BadZipFile) as error:
            raise FetchError(f"{wheel.name} does not hold {MEMBER}: {error}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise FetchError(
            f"{MEMBER} of {PACKAGE} has SHA-256 {found}, expected is {SHA256}: the package index hands out another "
            "file; do not use it"
        )
    return content


def download(folder: Path) -> Path:
    """The wheel, fetched by pip so that the machine's own index, proxy and certificates are used."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    argv += ["--retries", "2", "--timeout", "30", "--no-deps", "--only-binary=:all:", *WHEEL_OF]
    argv += ["--dest", str(folder), PACKAGE]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        why = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no answer")
        raise FetchError(f"pip could not download {PACKAGE}; is the package index reachable from here? ({why})")
    return wheels[0]


def save(content: bytes, target: Path) -> None:
    """Write the file whole or not at all."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        unfinished.write_bytes(content)
        unfinished.replace(target)
    except OSError as error:
        raise FetchError(f"{target} cannot be written: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
