"""Data stores, model archives, and uploads that are pending."""
