"""A small Slurm made of files and processes; see :mod:`tests.fakes.slurm.state`."""
