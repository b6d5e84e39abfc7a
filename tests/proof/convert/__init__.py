"""`make proof-convert`: scripts for sbatch and what they become, run against commands that only record."""
