"""Decide how many GPUs and which batch sizes elastic jobs get: throughput models, optimiser, policies, simulator.

Everything here is pure: values and measurements come in as arguments, and decisions are returned. The package needs the
extra `elastic` (numpy, scipy). It must not read the clock, the database or a scheduler. Only `csv_tables` reads files,
for simulations.
"""
