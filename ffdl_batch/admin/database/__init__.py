"""`ffdl-admin db`."""
