"""The helper beside a running learner: commands, shells, tables of processes and stacks, for whoever debugs it."""
