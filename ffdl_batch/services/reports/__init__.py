"""Reports: usage, faults, agreement with accounting, Prometheus metrics."""
