"""An event loop in a thread, for schedulers of tests that have none."""

import asyncio
import threading
from functools import cache


@cache
def background_loop() -> asyncio.AbstractEventLoop:
    """Return the loop, which all tests of the process share."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="background-loop", daemon=True).start()
    return loop
