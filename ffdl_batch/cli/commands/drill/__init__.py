"""`ffdl drill`."""
