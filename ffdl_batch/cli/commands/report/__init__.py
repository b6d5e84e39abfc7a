"""`ffdl report`."""
