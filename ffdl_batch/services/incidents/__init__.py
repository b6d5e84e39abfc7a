"""Incidents: record them, apply fault policies, send notices."""
