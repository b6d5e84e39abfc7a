"""Why a job does not run yet, and what the evidence is. Pure."""
