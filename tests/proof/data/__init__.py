"""`make proof-data`: data in, results out, the cache, secrets and metrics, beside what was planted."""
