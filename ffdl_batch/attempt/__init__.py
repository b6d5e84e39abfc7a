"""Reads what an attempt's learners and controllers wrote. Standard library; runs on Python 3.9."""
