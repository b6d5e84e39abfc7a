"""Mounts data stores on a node by rclone."""
