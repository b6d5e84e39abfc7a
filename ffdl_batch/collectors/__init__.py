"""Collect metrics: one process per learner reads what the learner writes and appends records in FfDL's format.

It imports ports and domain only. The controller starts it (`python -m ffdl_batch.collectors SPEC.json`) and watches it.
It never makes a learner wait. It may be killed at any moment: the next process continues where the position file says.
"""
