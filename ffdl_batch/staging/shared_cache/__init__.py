"""The shared cache: one copy of an object serves all users who may read it at the store.

Imports the standard library only, with values of `host` and `domain`. Takes nothing on trust: a service in this package
asks the store, with a request that the reader has signed, before it hands out an object.
"""
