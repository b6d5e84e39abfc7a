"""Sends notices by mail and by webhook."""
