"""The staging program: brings data from stores to a node and results from a node to stores.

A process of its own (``python -m ffdl_batch.staging TASK.json``) that the node controller starts and watches. It keeps
a journal, so that killed at any moment and started again it does not move again what has moved. It never deletes
anything in a store, never writes outside of a transfer's directory, and never says a credential.

The engine is threads over plain requests: botocore for S3, urllib3 for the stores that speak HTTP. s3fs and s3transfer
move whole files well, but neither goes on within one after a kill, reads on condition that the object is still the same
(If-Match), or says which try failed and why; around ranges, conditions and retries of our own they would be a layer
with retries and pools of its own, and an event loop is no faster where two cores are busy with TLS and MD5.
"""
