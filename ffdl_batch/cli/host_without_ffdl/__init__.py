"""Commands for a host on which no ffdl_batch is installed."""
