"""The kubelets: pods as real processes of this machine. Needs root."""
