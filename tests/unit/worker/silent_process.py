"""A fake worker process that never answers, like one whose graph loops while it is loaded."""

import signal

if __name__ == "__main__":
    while True:
        signal.pause()
