"""Plans an attempt: batch script, options, devices, network."""
