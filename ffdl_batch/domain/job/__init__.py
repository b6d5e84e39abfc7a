"""A job as it was submitted: specification, learners, stores, variables, ids and views. Pure."""
