"""Recipe for Spack 1.0 and later: copy it to packages/ffdl_batch/package.py of a repository of your site, and the archive that `make packages`
writes to the path of `url`. Then: spack install --no-checksum ffdl-batch

The package is a virtual environment with the locked versions of all libraries, which pip downloads. Recipes of the libraries
are not used: fastapi and others in Spack are older than the versions that ffdl_batch needs.
"""

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class FfdlBatch(Package):
    """Training jobs from FfDL manifests on Slurm with GPUs and Apptainer."""

    url = "file:///usr/local/src/ffdl_batch-0.1.0.tar.gz"

    license("Apache-2.0")

    version("0.1.0")

    depends_on("python@3.11:", type=("build", "run"))

    def install(self, spec, prefix):
        """Make the virtual environment. Its Python must not get onto the PATH of users, only the commands."""
        venv = prefix.libexec
        spec["python"].command("-m", "venv", venv)
        pip = Executable(venv.bin.pip)
        pip("install", "--require-hashes", "-r", "requirements-extras.txt")
        pip("install", "--no-deps", "--no-build-isolation", ".")
        mkdirp(prefix.bin)
        for name in ("ffdl", "ffdl-submit", "ffdl-submitd", "ffdl-admin", "ffdl-hub"):
            symlink(venv.bin.join(name), prefix.bin.join(name))
        symlink(venv.share, prefix.share)
