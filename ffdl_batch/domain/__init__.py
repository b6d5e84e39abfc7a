"""Values and rules on the standard library alone; nothing here opens a file, a socket or a process."""
