"""Images of registries: resolve a reference to a digest, and build one SIF file per digest."""
