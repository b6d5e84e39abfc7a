"""Manifests as batch scripts that need Slurm and Apptainer alone. Pure; it asks no Slurm."""
