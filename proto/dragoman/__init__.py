"""Dragoman: neural machine translation over gRPC and HTTP.

    from dragoman import TranslationClient

    with TranslationClient("localhost:50051") as client:
        result = client.translate(["Hello, world."], source_language="en", target_language="de")
        print(result[0].text)

The names of `dragoman.client` and `__version__` are importable from here. They are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dragoman import client

if TYPE_CHECKING:
    from dragoman.client import *  # noqa: F403

    __version__: str  # `unknown` in a source tree that is not installed

__all__ = ["__version__"]
__all__ += client.__all__


def __getattr__(name: str) -> Any:
    if name == "__version__":
        metadata = import_module("importlib.metadata")
        try:
            return metadata.version("dragoman")
        except metadata.PackageNotFoundError:
            return "unknown"
    if name in __all__:
        return getattr(client, name)
    raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
