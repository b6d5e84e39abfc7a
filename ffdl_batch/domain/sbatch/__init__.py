"""Values of sbatch options. Pure."""
