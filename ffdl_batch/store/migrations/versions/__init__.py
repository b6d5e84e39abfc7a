"""One module for each revision; a released one never changes."""
