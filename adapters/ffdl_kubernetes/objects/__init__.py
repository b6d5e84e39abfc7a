"""What an attempt consists of in a cluster, as plain objects. Pure."""
