"""The launch file and what stands in it: the contract between planners and controllers. Pure."""
