"""What a submission consists of: manifest, model, variables."""
