"""What the core asks of the world, as Protocols. Adapters implement them; services ask them."""
