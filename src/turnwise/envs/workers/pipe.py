"""Frames of pickled messages over a socket: the transport between the trainer and a worker of its machine.

Invariant: the trainer's side never blocks, so a worker that reads nothing cannot hold the trainer up. Messages of one
`send` travel in one frame.
"""

import contextlib
import pickle
import select
import socket
import struct
import threading
from collections.abc import Iterator

_LENGTH = struct.Struct(">I")
_CHUNK = 1 << 18


class Frames:
    """Bytes as they arrive, and the messages in them."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> Iterator[object]:
        self._bytes += data
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            frame = bytes(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            yield from pickle.loads(frame)  # what our own process at the other end wrote


def to_frame(messages: tuple[object, ...]) -> bytes:
    data = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class WorkerPipe:
    """The worker's end: writes block until the trainer has read, from whichever thread they come."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._frames, self._lock = end, Frames(), threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, *messages: object) -> None:
        frame = to_frame(messages)
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(frame)

    def receive(self) -> list[object]:
        """What has arrived; an EOFError where the trainer is gone."""
        data = self._socket.recv(_CHUNK)
        if not data:
            raise EOFError
        return list(self._frames.add(data))


class TrainerPipe:
    """The trainer's end: what the socket does not take at once is kept and sent later."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._frames = end, Frames()
        self._unsent = bytearray()
        end.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, messages: tuple[object, ...]) -> None:
        self._unsent += to_frame(messages)
        self.flush()

    def flush(self) -> None:
        """Sends what the socket takes; a worker that is gone is noticed by `receive`."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]

    def receive(self) -> list[object]:
        found: list[object] = []
        while True:
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return found
            except ConnectionResetError:
                data = b""
            if not data:
                if found:
                    return found  # the end is met again by the next call
                raise EOFError
            found += self._frames.add(data)

    def wait(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poll.poll(1000 * seconds)
        self.flush()

    def close(self) -> None:
        self._socket.close()
