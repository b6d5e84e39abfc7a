"""What went wrong: incidents, their kinds and causes, fault policies, node scores. Pure."""
