"""Runs Slurm's commands, locally, by SSH or with pyslurm, and maps what they print to errors."""
