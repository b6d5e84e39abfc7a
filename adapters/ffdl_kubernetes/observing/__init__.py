"""The daemon's copy of what pods write into their attempt's directory, made of what they print."""
