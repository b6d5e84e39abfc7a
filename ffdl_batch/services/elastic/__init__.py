"""Sizes of elastic jobs: the scaler, its decisions, and the reasons for them."""
