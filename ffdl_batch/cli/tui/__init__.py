"""The terminal view of jobs, with Textual, which only this package imports."""
