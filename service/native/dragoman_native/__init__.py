"""Shared library of the native engine; `dragoman_service.runtimes.native.library` loads it."""

from pathlib import Path

LIBRARY = Path(__file__).with_name("libdragoman_native.so")
