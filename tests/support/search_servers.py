"""A search server in a thread of its own, on a free port."""

import contextlib
import threading
from collections.abc import Iterator

from turnwise.tools.search.retrieval import Index
from turnwise.tools.search.server import SearchServer


@contextlib.contextmanager
def serving(index: Index, **options: int) -> Iterator[SearchServer]:
    server = SearchServer(index, port=0, **options)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
