"""Lists the meanings of Xid numbers of NVIDIA's driver: a sick GPU, or an error of a program. Pure.

Source: NVIDIA, "Xid Errors" (docs.nvidia.com/deploy/xid-errors), its catalogue and its table of common ones. Other
numbers are reported without blaming the GPU or the program.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple


class Meaning(NamedTuple):
    """`kind` is that of the finding. `badly`: the GPU cannot be used until it is repaired."""

    kind: str
    words: str
    badly: bool = False


USERS = "gpu_program"
"""The kind of errors that a program on the GPU caused. They are no sign of a sick node."""
UNKNOWN = Meaning("gpu_other", "not in the table of ffdl_batch")
XIDS: Mapping[int, Meaning] = {
    13: Meaning(USERS, "graphics engine exception"),
    31: Meaning(USERS, "GPU memory page fault"),
    43: Meaning(USERS, "GPU stopped processing"),
    45: Meaning(USERS, "preemptive cleanup after earlier errors"),
    48: Meaning("ecc", "double-bit ECC error", badly=True),
    61: Meaning("gpu", "internal micro-controller breakpoint"),
    62: Meaning("gpu", "internal micro-controller halt", badly=True),
    63: Meaning("ecc", "page retirement or row remapping recorded"),
    64: Meaning("ecc", "page retirement or row remapping failed", badly=True),
    74: Meaning("nvlink", "NVLink error"),
    79: Meaning("gpu", "GPU has fallen off the bus", badly=True),
    92: Meaning("ecc", "high rate of single-bit ECC errors"),
    94: Meaning("ecc", "contained ECC error"),
    95: Meaning("ecc", "uncontained ECC error", badly=True),
    119: Meaning("gpu", "GSP RPC timeout", badly=True),
    120: Meaning("gpu", "GSP error", badly=True),
    121: Meaning("nvlink", "C2C link error"),
    140: Meaning("ecc", "unrecovered ECC error", badly=True),
    143: Meaning("gpu", "GPU initialisation failed", badly=True),
    **{number: Meaning("nvlink", "NVLink 5 error") for number in range(144, 151)},
}
