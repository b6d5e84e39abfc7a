"""Protocols that adapters implement and that services call. Their values are in domain and runtimes."""
