"""``ffdl-admin``: what an administrator does to an installation. Click, settings, services and the store's insides.

It works on what daemons leave, never through a daemon. Nothing is imported before the command that needs it.
"""
