"""A small Slurm made of files and processes; see :mod:`tests.fakes.slurm.state`.

Its programs are started thousands of times: they do without site packages and without `typing`, together a fifth
of a start. Type checkers take a constant named TYPE_CHECKING for true.
"""
