"""Reads jobs, nodes and accounting from what Slurm's commands print."""
