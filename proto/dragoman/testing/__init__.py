"""Fakes of the client and of the server, for unit tests of programs that use Dragoman.

    from dragoman.testing import FakeTranslationClient

    def test_greeting_is_translated() -> None:
        with FakeTranslationClient() as client:
            result = client.translate(["Hello."], source_language="en", target_language="de")
        assert result[0].text == "[de] Hello."

The fakes need no model and no network. `dragoman serve --fake` is the fake for programs in other languages.
"""

from dragoman.testing.clients import FakeAsyncTranslationClient, FakeTranslationClient
from dragoman.testing.server import FakeServer
from dragoman.testing.translator import FakeCall, FakeTranslator

__all__ = ["FakeAsyncTranslationClient", "FakeCall", "FakeServer", "FakeTranslationClient", "FakeTranslator"]
