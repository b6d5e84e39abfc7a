"""The root side of network level `job`: what prolog, epilog, boot and check have in common.

Runs on compute nodes as root, with the system's Python (3.9 or newer) and its standard library. It believes what Slurm
says (job id, uid, node list, node name) and the site's values; of a user's it reads the mark in the comment alone.
"""
