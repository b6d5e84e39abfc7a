"""Send notices by mail and by webhook."""
