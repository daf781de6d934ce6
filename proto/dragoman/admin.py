"""The clients that change what a server translates with; its API key needs a permission of its own.

with ModelAdminClient("dragoman-0.dragoman:50051", api_key=..., tls=TlsOptions()) as admin:
    admin.load_model("en-de/2")
    admin.set_model_label("en-de/2", "stable")
    admin.unload_model("en-de/1")

A call changes one replica, so the target names one; if it has several addresses, all calls go to the same. None is
retried by itself: a second attempt could change another replica.
"""

from dragoman.answers import answer, awaited_answer
from dragoman.calls import CallSettings
from dragoman.channel import Balancing
from dragoman.connection import AsyncConnection, SyncConnection
from dragoman.credentials import Metadata
from dragoman.models import Model

_TIMEOUT_S = 300.0  # a large model is read and warmed up in that time


class ModelAdminClient(SyncConnection):
    """Changes what a server translates with and waits until it has.

    `timeout_s` and `metadata` are as in `TranslationClient`, but a call that names no deadline has 300 s.
    """

    _balancing = Balancing.PICK_FIRST
    _has_retries = False
    _default_timeout_s = _TIMEOUT_S

    def load_model(self, model: str, *, timeout_s: float | None = None, metadata: Metadata = ()) -> Model:
        """Load `name/version` from the server's directory of models; one that is loaded already is left alone.

        Returns:
            The model, with that version only; it takes requests by now.

        Raises:
            ModelNotFoundError: if the directory has no such version.
            ModelStateError: if it has a broken one; what served before goes on serving.
            DragomanError: if the call does not end with OK for another reason.
        """
        return answer(self._calls.load_model(model, CallSettings(timeout_s=timeout_s, metadata=metadata)))

    def unload_model(self, model: str, *, timeout_s: float | None = None, metadata: Metadata = ()) -> None:
        """Unload `name/version`: it answers what it has, takes nothing new and gives back its memory.

        Raises:
            ModelNotFoundError: if it is not loaded.
            DragomanError: if the call does not end with OK for another reason.
        """
        answer(self._calls.unload_model(model, CallSettings(timeout_s=timeout_s, metadata=metadata)))

    def set_model_label(
        self, model: str, label: str, *, timeout_s: float | None = None, metadata: Metadata = ()
    ) -> Model:
        """Let `name@label` ask for `name/version` from now on, until the server ends.

        Returns:
            The model, with all its versions.

        Raises:
            ModelNotFoundError: if the version is not loaded.
            ValueError: if `model` has no version; `remove_model_label` takes a name alone.
            DragomanError: if the call does not end with OK for another reason.
        """
        _check_version(model)
        return answer(self._calls.set_model_label(model, label, CallSettings(timeout_s=timeout_s, metadata=metadata)))

    def remove_model_label(
        self, name: str, label: str, *, timeout_s: float | None = None, metadata: Metadata = ()
    ) -> Model:
        """Remove a label from whatever version of the model `name` it points to.

        Returns:
            The model, with all its versions.

        Raises:
            ModelNotFoundError: if there is no such model.
            ValueError: if `name` has a version.
            DragomanError: if the call does not end with OK for another reason.
        """
        _check_name(name)
        return answer(self._calls.set_model_label(name, label, CallSettings(timeout_s=timeout_s, metadata=metadata)))


class AsyncModelAdminClient(AsyncConnection):
    """Changes what a server translates with, from asyncio; see `ModelAdminClient`."""

    _balancing = Balancing.PICK_FIRST
    _has_retries = False
    _default_timeout_s = _TIMEOUT_S

    async def load_model(self, model: str, *, timeout_s: float | None = None, metadata: Metadata = ()) -> Model:
        """See `ModelAdminClient.load_model`."""
        return await awaited_answer(self._calls.load_model(model, CallSettings(timeout_s=timeout_s, metadata=metadata)))

    async def unload_model(self, model: str, *, timeout_s: float | None = None, metadata: Metadata = ()) -> None:
        """See `ModelAdminClient.unload_model`."""
        await awaited_answer(self._calls.unload_model(model, CallSettings(timeout_s=timeout_s, metadata=metadata)))

    async def set_model_label(
        self, model: str, label: str, *, timeout_s: float | None = None, metadata: Metadata = ()
    ) -> Model:
        """See `ModelAdminClient.set_model_label`."""
        _check_version(model)
        settings = CallSettings(timeout_s=timeout_s, metadata=metadata)
        return await awaited_answer(self._calls.set_model_label(model, label, settings))

    async def remove_model_label(
        self, name: str, label: str, *, timeout_s: float | None = None, metadata: Metadata = ()
    ) -> Model:
        """See `ModelAdminClient.remove_model_label`."""
        _check_name(name)
        settings = CallSettings(timeout_s=timeout_s, metadata=metadata)
        return await awaited_answer(self._calls.set_model_label(name, label, settings))


def _check_version(model: str) -> None:
    if "/" not in model:
        raise ValueError(f"model is {model!r}, must be name/version")


def _check_name(name: str) -> None:
    if "/" in name:
        raise ValueError(f"name is {name!r}, must be the name of a model without a version")
