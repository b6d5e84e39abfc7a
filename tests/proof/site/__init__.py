"""Site mode on the real cluster: three users, two login nodes, faults of hub, spawner and daemons."""
