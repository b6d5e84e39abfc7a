"""The command line: ``ffdl`` and ``ffdl-submit``. It asks, prints and holds no rule; the daemon decides."""
