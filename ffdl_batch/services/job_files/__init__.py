"""Files of jobs on the shared file system: control cells, directories, cleanup."""
