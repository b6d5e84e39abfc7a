"""The Kubernetes adapter: one attempt is one Indexed Job (docs/decisions/0006-kubernetes.md)."""
