"""The adapters of the daemon, and what it knows of their sites."""
