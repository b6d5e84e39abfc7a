"""Holds the daemon's adapters and the facts about their sites."""
