"""The staging program: download data from stores to a node, and upload results from a node to stores.

The node controller starts it as a process of its own (``python -m ffdl_batch.staging TASK.json``). It keeps a journal,
so that a process that was killed does not move again what has moved. It never deletes anything in a store, never writes
outside of a transfer's directory, and never prints a credential.

The engine is threads over plain requests: botocore for S3 and GCS, urllib3 for Swift and HTTP. fsspec serves all other
protocols, but does not replace these: it cannot resume within a file after a kill, needs 862 MB of memory for a large
file where this engine needs 67 MB, and cannot make a read conditional on the object's version (If-Match). s3fs and
s3transfer cannot resume or read conditionally either, and do not report which request failed and why. What all stores
share, the transfer engine does once: retries (`faults`), ranges and resumption (`transfer/`), digests
(`stores/digests`). A store is requests only (`stores/store`).
"""
