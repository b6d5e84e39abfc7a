"""The client's fixtures, for the command line."""

from tests.unit.client.conftest import daemon, manifest, model, short_dir

__all__ = ["daemon", "manifest", "model", "short_dir"]
