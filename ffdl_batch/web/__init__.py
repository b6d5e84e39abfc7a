"""The page of a daemon: a server that shows jobs in a browser. It calls the daemon through the client, as commands
do."""
