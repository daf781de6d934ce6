"""Interfaces of the components that the translator uses."""

from collections.abc import Callable, Collection
from typing import Protocol

from dragoman_service.models.model import SegmentQueue
from dragoman_service.text.planning import TextModel


class Quota(Protocol):
    """Limits of callers over time."""

    async def take_tokens(
        self, caller: str, num_tokens: int, *, decode_cost: Callable[[], int] | None = None
    ) -> Callable[[], None]:
        """Charge source tokens and decode cost to a caller, both or none; RateLimitedError if they are too many.

        `decode_cost` is called only if the decode cost of the caller is limited.

        Returns:
            A function that refunds the charge, to be called at most once.
        """


class ServingModel(TextModel, Protocol):
    """A model that translates requests."""

    @property
    def name(self) -> str:
        """Name without version."""

    @property
    def version(self) -> str:
        """Version."""

    @property
    def has_attention(self) -> bool:
        """Whether the model returns its cross-attention."""

    @property
    def scheduler(self) -> SegmentQueue:
        """Queue of the model."""


class ModelSource(Protocol):
    """The served models and language pairs."""

    def resolve(self, model: str, source_language: str, target_language: str) -> ServingModel:
        """Return the model of a request; RequestError if none fits."""

    def source_languages(self, model: str, target_language: str) -> Collection[str]:
        """Return the languages that a model translates into a language; RequestError if there are none.

        An empty name means any model, or any language.
        """
