"""Tries and listens, in learners' containers and as a plain process of any user: the standard library alone.

Run as ``python3 -m prober VERB`` in the directory above, which the package does not import.
"""
