"""Check that an image file has a signature that the site accepts, before learners start in it.

Apptainer verifies the file on the node that starts it. It takes public keys from the node's global keyring only: the
user's own keyring is replaced by an empty one.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import BinaryIO, Callable, Set

from ffdl_batch.attempt.phase_files import PhaseFailed
from ffdl_batch.controller.own_program import module_argv
from ffdl_batch.domain.launch.launch_file import Signature
from ffdl_batch.domain.untrusted_json import parse_json
from ffdl_batch.host.processes import end_child

FORBIDDEN, NO_RUNTIME = "C107", "S105"
END_S = 2.0
NOT_STARTED = 127
"""Exit status of the module `become` if there is no such program."""
MOST_BYTES, MOST_CHARACTERS = 1 << 20, 300
_OWN = ("APPTAINER", "SINGULARITY")
_KEYRINGS = ("APPTAINER_KEYSDIR", "SINGULARITY_KEYSDIR", "SINGULARITY_SYPGPDIR")


def check_signature(wanted: Signature, keyring: str, rest: Callable[[], None]) -> None:
    """Verify the image. `keyring` is a directory that Apptainer makes; `rest` waits a moment and raises if the check
    must stop. Raises PhaseFailed, OSError."""
    image, host = wanted.verify[-1], os.uname().nodename
    env = {name: text for name, text in os.environ.items() if not name.startswith(_OWN)}
    env.update(dict.fromkeys(_KEYRINGS, keyring), LC_ALL="C.UTF-8")
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        argv = [*module_argv("ffdl_batch.controller.become"), *wanted.verify]
        process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            while process.poll() is None:
                rest()
            if process.returncode:
                rest()  # a scheduler that ends the job signals both processes
        finally:
            end_child(process, END_S)
        signers, reply = _signers(_text(output)), " ".join(_text(errors).split())[-MOST_CHARACTERS:]
    if process.returncode < 0 or process.returncode == NOT_STARTED:
        raise PhaseFailed(NO_RUNTIME, f"{wanted.verify[0]} could not verify image {image} on {host}: {reply}")
    if process.returncode or not signers:
        why = f"its signature could not be verified on {host}: {reply or 'it has none'}"
    elif signers <= set(wanted.signers):
        return
    else:
        why = f"it is signed by {', '.join(sorted(one or 'an unknown key' for one in signers))}"
    raise PhaseFailed(
        FORBIDDEN,
        f"image {image}: {why}; image_policy.signers requires a signature by {' or '.join(wanted.signers)}; the public "
        "key must be in each node's global keyring",
    )


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(MOST_BYTES).decode("utf-8", "replace")


def _signers(text: str) -> Set[str]:
    """Return the fingerprints of all signers in Apptainer's JSON; an unknown one is "". Empty = there are none."""
    try:
        keys = parse_json(text)["SignerKeys"] or ()
        return {str(key["Signer"]["Fingerprint"]).upper() for key in keys}
    except (ValueError, KeyError, TypeError):
        return set()
