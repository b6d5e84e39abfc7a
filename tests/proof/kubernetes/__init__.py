"""The proof on the cluster that KUBECONFIG names."""
