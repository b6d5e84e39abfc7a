"""Real outputs of Slurm's commands, by release, as the adapter asks for them."""
