"""Follows attempts and records their states."""
