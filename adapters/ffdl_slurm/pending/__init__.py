"""Explains why a job of Slurm is pending."""
