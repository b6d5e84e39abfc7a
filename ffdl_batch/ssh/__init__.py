"""SSH as this project uses it: one connection to a login node, kept, with a channel for each command.

Whom we speak to is proved by known_hosts, always. How a host is reached is what ssh(1) would do: its configuration is
asked for, jump hosts and proxies included. paramiko is imported when a connection is made, and not before.

It knows nothing of jobs, daemons and Slurm. Programs that may be asked on the terminal are those of persons: a process
without one gives up where a person would be needed.
"""
