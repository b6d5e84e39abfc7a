"""Why Jobs wait, and which nodes could ever hold them."""
