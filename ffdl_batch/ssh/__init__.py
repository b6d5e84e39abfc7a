"""Runs commands on a login node over SSH, by the system's ssh or by paramiko.

The host's key is always checked against known_hosts. Jump hosts, proxies and users come from the configuration of ssh.
paramiko is imported only if it makes the connection. This package must not know jobs, daemons or Slurm.
"""
