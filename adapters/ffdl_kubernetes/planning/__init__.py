"""Plans an attempt: the shape of its pods, and checks of its manifest."""
