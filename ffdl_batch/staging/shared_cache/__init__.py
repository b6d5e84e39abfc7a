"""The shared cache: one copy of an object serves all users to whom the store gives it.

Imports the standard library only, with values of `host` and `domain`. Takes nothing on trust: a service in this package
asks the store, with a request that the reader has signed, before it hands out an object.
"""
