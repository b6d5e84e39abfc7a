"""Helper beside a running learner: commands, shells, tables of processes and stacks, for debugging."""
