"""The cache of a node or a site: data and images that one job downloaded are there for other jobs of the same user.

``<cache>/<uid>/`` belongs to one user. ``entries/<key>/`` are read-only trees, named by a digest of their content.
``filling/`` has entries that are not complete. ``locks/`` says which process uses what. An entry appears by one rename.
Nothing here is needed: if a cache is full, damaged, hung or not trusted, the job gets a note and goes to the store.
"""
