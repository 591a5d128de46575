"""The supervisor outlives who gives it orders, wherever that one is killed."""

import io
import os
import socket

from specreg.core import supervisor


def test_whoever_is_killed_before_the_answer_is_read_gives_no_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, io.FileIO(os.dup(ours.fileno()), "r+b") as orders:
        ours.sendall(b"an answer that nobody reads\n")
        theirs.close()
        assert supervisor.read_order(orders) == ""


def test_an_order_that_was_cut_off_is_none() -> None:
    ours, theirs = socket.socketpair()
    with ours, io.FileIO(os.dup(ours.fileno()), "r+b") as orders:
        theirs.sendall(b'["a program", ')
        theirs.close()
        assert supervisor.read_order(orders) == ""
