"""The shared library of the decoder step; `service.runtime.native_library` loads it."""

from pathlib import Path

LIBRARY = Path(__file__).with_name("libdragoman_native.so")
"""Path of the library."""
