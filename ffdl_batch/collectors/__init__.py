"""Collectors of metrics: a process per learner that reads what the learner writes and appends FfDL's records.

Imports ports and domain only. The controller starts it (`python -m ffdl_batch.collectors SPEC.json`) and watches it; it
never makes a learner wait, and may be killed at any moment: the next one goes on where its position file says.
"""
