"""What controllers write and read in an attempt's directory: events, phase files, cells, logs."""
