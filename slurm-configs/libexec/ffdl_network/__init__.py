"""Makes and removes networks of jobs as root: the code that prolog, epilog, boot and check share.

Runs on compute nodes as root, with the system's Python (3.9 or newer) and its standard library. It trusts the values of
Slurm (job id, uid, node list, node name) and of the site. The only input of a user is the mark in the job's comment.
"""
