"""Finds signs of a sick node in the kernel log, the GPUs, the mounts, the disks and the clock.

Runs on compute nodes as root, with the system's Python (3.9 or newer) and its standard library. It writes only below
`FFDL_RUN/health`, and contacts slurmctld only if the site lets it drain a node.
"""
