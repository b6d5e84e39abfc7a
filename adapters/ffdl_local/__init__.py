"""The local adapter: jobs are processes on this machine. The embedded default, and the reference."""
