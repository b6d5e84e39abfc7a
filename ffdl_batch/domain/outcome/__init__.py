"""How an attempt ended: events, facts, verdict, continuation. Pure."""
