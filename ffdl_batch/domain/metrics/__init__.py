"""Metrics, usage and rates: records, series, reports. Pure."""
