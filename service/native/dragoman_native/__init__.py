"""The shared library of the decoder step; `dragoman_service.runtimes.native.library` loads it."""

from pathlib import Path

LIBRARY = Path(__file__).with_name("libdragoman_native.so")
"""Path of the library."""
