"""`ffdl bench`."""
