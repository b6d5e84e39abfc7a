"""Learners and nodes that belong together: how they find each other and wait for each other."""
