"""`make proof-faults`: faults planted among healthy jobs on the real cluster, and what the report of faults says."""
