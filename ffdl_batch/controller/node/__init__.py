"""The node controller, one process per node: from loading to storing, and the learners in between."""
