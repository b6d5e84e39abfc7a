"""The cache: what came once is there for whoever of the same user wants the same on this node, or at this site.

``<cache>/<uid>/`` belongs to one user: ``entries/<key>/`` are read-only trees named by what they hold, ``filling/`` are
those that are not whole yet, ``locks/`` say who uses what. An entry appears by one rename. Nothing in here is needed: a
cache that is full, damaged, hung or not to be trusted costs a note, never a job.
"""
