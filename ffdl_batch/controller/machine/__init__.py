"""What a controller finds on its node: files, processes, clocks, standard error, and its own code."""
