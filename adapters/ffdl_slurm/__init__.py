"""The Slurm adapter: turns one attempt into one batch job, and Slurm's words into the core's."""
