"""The network that learners are in: the job's own one, or none."""
