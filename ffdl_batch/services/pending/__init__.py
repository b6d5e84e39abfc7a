"""Explains why jobs are pending."""
