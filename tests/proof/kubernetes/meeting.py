"""Goes with the model: the learners of a job meet by TCP, and print who has met whom. Needs no more than Python 3.6."""

import os
import socket
import sys
import time

PATIENCE_S = 60.0


def main() -> None:
    """Rank 0 takes a word of each of the others and answers; they try until it is there."""
    rank, others = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen(others)
        listener.settimeout(PATIENCE_S)
        for _ in range(others):
            connection, (peer, _) = listener.accept()
            print(f"heard {connection.recv(64).decode()} from {peer}", flush=True)
            connection.sendall(b"yes")
            connection.close()
        return
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection = socket.create_connection((address, port), 5)
            break
        except OSError as error:
            if time.monotonic() > end:
                sys.exit(f"rank 0 at {address} port {port} was not reached: {error}")
            time.sleep(0.2)
    connection.sendall(f"rank {rank}".encode())
    print(f"told {rank} at {connection.getpeername()[0]}: {connection.recv(64).decode()}", flush=True)


if __name__ == "__main__":
    main()
