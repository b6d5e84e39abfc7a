"""The head controller, the batch script's process, and whoever stands in for it after its attempt has ended."""
