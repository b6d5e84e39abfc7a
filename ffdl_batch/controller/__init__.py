"""The controllers, which run on the nodes, outside the container. Standard library and some domain modules only.

Runs on Python 3.9. ``head`` is the batch script's process, ``node`` one process per node. They build no command
line of their own: all argv come from the launch file. The folders import only downwards.
"""
