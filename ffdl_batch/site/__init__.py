"""Site mode: one daemon per user, started by the spawner; the personal mode does not use it."""
