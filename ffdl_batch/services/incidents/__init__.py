"""Records incidents, applies fault policies, sends notices."""
