"""Unit tests of the Slurm adapter."""
