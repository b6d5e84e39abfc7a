"""The head controller, which is the batch script's process, and what stores pending uploads after the attempt."""
