"""Signs of a sick node: what the kernel logs, what the GPUs count, what mounts, disks and the clock say.

Runs on compute nodes as root, with the system's Python (3.9 or newer) and its standard library. It reads; it writes
below `FFDL_RUN/health` alone, and speaks to slurmctld only where the site lets it drain a node.
"""
