"""A table of the options that plugins of a site (spank(7)) add to sbatch, as published scripts use them.

sbatch accepts them if the plugin is installed. The converter always accepts them and reports them. Names and kinds of
arguments are those in the documentation of Pyxis, Shifter, uenv, the container engine of CSCS, and BeeOND.
"""

from __future__ import annotations

from ffdl_batch.domain.sbatch.option_table import OptionRow, Takes

IMAGE = "container-image"
_PYXIS = "Pyxis is not asked: learners run in the manifest's image, and see no directory of the node"
MOUNTS = "learners see no directory of the node: name what they read and write under data_stores"
_SHIFTER = "Shifter is not asked: name the image by --image, as docker://REPOSITORY/NAME:TAG"
_VIEW = "the plugin is not asked: the image has to have this environment, or choose one that has the software: --image"
_NAMED = {
    "container-mounts": MOUNTS, "container-workdir": _PYXIS, "container-name": _PYXIS, "container-save": _PYXIS,
    "container-env": _PYXIS, "image": _SHIFTER, "module": _SHIFTER, "volume": MOUNTS, "environment": _VIEW,
    "uenv": _VIEW, "view": _VIEW, "beeond": "no file system is made for the job: --tmp asks for room on the node",
}  # fmt: skip
_FLAGS = (
    "container-mount-home", "no-container-mount-home", "container-remap-root", "no-container-remap-root",
    "container-writable", "container-readonly", "container-entrypoint", "no-container-entrypoint",
    "no-container-entrypoint-log",
)  # fmt: skip
PLUGINS = {
    IMAGE: OptionRow(
        IMAGE, "framework.version", differs="each learner runs in it, pulled by Apptainer in place of enroot"
    ),
    **{name: OptionRow(name, refused=reason) for name, reason in _NAMED.items()},
    **{name: OptionRow(name, takes=Takes.NONE, refused=_PYXIS) for name in _FLAGS},
}
FORMER = {"workdir": "chdir", "share": "oversubscribe", "mem_bind": "mem-bind"}
"""Former names of options, and the names of today."""
