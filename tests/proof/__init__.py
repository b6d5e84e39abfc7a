"""Proofs: whole runs on the real cluster, judged by programs that recompute everything themselves."""
