"""Stands in for a decoding process that never tells anything: its graph is in a loop while it is loaded."""

import signal

if __name__ == "__main__":
    while True:
        signal.pause()
