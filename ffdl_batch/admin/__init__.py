"""``ffdl-admin``: commands for administrators. They use settings, services and the store, never a running daemon.

A module is imported only by the command that needs it.
"""
