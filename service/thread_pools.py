"""Pools of threads for what would hold up the event loop."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait


def started_pool(num_threads: int, *, name: str) -> ThreadPoolExecutor:
    """Return a pool all of whose threads run already.

    A pool by itself starts a thread when work comes and none is idle, so how many there are depends on how calls
    happened to fall: a thread that leaks cannot be told from one more of the pool, and where threads are limited a
    server fails at its busiest moment instead of at its start.

    Args:
        num_threads: in it.
        name: how their names begin.

    Raises:
        RuntimeError: if the system starts no more threads.
    """
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
    together = threading.Barrier(num_threads)  # nobody is idle until all are there
    try:
        arrivals = [pool.submit(together.wait) for _ in range(num_threads)]
    except RuntimeError:
        together.abort()
        pool.shutdown()
        raise
    wait(arrivals)
    return pool
