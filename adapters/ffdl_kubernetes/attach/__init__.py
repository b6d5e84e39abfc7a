"""The way of a job's owner to the helper in a pod: what srun is on Slurm. A process of the owner's own, with his
credentials; what he may not do in the cluster, he may not do here."""
