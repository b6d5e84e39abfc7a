"""How a caller of the hub gets a token, and the tokens by which the hub acts for a tenant."""
