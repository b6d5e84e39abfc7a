"""sbatch scripts and manifests, one into the other. Pure; it asks no Slurm."""
