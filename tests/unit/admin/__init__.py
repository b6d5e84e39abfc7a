"""ffdl-admin."""
