"""A file is handed to the parser's child as an open descriptor, so that it needs no right to open one (unix(7)).

Each request begins with one byte that carries the descriptor; its frame follows on the same socket.
"""

from __future__ import annotations

import socket
import sys

_DESCRIPTOR_BYTES = 4
"""Of a C int."""


def send_file(target: socket.socket, fd: int) -> None:
    """Raises `BrokenPipeError` where nobody reads any more."""
    socket.send_fds(target, [b"\0"], [fd])


def receive_file(source: socket.socket) -> int:
    """A descriptor of our own, to be closed by us. Raises `EOFError` where the other side has closed."""
    mark, ancillary, _, _ = source.recvmsg(1, socket.CMSG_SPACE(_DESCRIPTOR_BYTES))
    if not mark:
        raise EOFError("the other side has closed the socket")
    ((_, _, descriptor),) = ancillary
    return int.from_bytes(descriptor, sys.byteorder)
