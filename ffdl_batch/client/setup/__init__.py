"""Installs this program on a host over SSH. It needs nothing there but a shell and Python."""
