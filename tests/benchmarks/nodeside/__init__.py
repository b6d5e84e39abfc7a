"""Programs that run on the login node as the user, so that only the product and Slurm are measured. JSON to stdout."""
