"""ffdl-submitd: HTTP over a Unix socket, and the loops. Both call services and ports; no rule about jobs is here."""
