"""Use cases, a folder for each. They own the transactions; loops and HTTP handlers only call them."""
