"""A Kubernetes cluster for the tests: an API server over TLS, the controllers that our jobs meet, and kubelets that run
containers as real processes.

It is a process of its own (``python -m tests.fakes.kubernetes``); tests use :mod:`tests.fakes.kubernetes.rig`. Facts
are Kubernetes' own: field names, rules, words of refusals. What it does not do: enforce network policies (pods share
the machine's network, but for those that may be cut off from all of it), give seccomp profiles, resolve names other
than by the pods' hosts files, hold CPU limits.
"""
