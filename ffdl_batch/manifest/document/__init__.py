"""The YAML document of a manifest: text, tree, positions, writing."""
