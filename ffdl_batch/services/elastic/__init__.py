"""Sizes of elastic jobs: the scaler of a pool, what it has decided, and why."""
