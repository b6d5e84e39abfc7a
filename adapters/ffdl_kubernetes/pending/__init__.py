"""What a cluster has free, and what a request that is not sent would find there."""
