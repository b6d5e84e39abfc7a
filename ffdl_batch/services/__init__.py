"""One use case per module. Services own the transactions; loops and HTTP handlers only call them."""
