"""Shared library of the native engine; `dragoman_service.runtimes.native.library` loads it."""

from importlib.resources import files

LIBRARY = files(__name__) / "libdragoman_native.so"  # in an editable install, it is not next to this file
