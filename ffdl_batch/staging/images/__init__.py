"""Images of registries: which one a reference means now, and its SIF file, made once per digest."""
