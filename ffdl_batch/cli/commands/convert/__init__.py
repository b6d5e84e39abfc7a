"""`ffdl convert`."""
