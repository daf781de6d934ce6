"""What the metrics say of the models."""

from service.models.catalogue import Entry
from service.models.model import ModelParts, ModelState
from service.telemetry.metrics import Metrics


class ModelGauges:
    """Shows models in the metrics, and takes them out again, which would otherwise keep their memory from being freed.

    One thread at a time may call it.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._infos: dict[str, tuple[str, ...]] = {}  # `name/version` to the labels of its info
        self._in_own_process: set[str] = set()

    def show_state(self, entry: Entry) -> None:
        """Show the state that a version is in."""
        for state in ModelState:
            self._metrics.model_state.labels(entry.name, entry.version, state.value).set(state is entry.state)

    def show_parts(self, entry: Entry, parts: ModelParts) -> None:
        """Show what a version that is ready consists of."""
        labels = (entry.name, entry.version, parts.precision, parts.device)
        self._infos[entry.full_name] = labels
        self._metrics.model_info.labels(*labels).set(1)
        self._metrics.model_weights_bytes.labels(entry.name, entry.version).set(parts.weights_bytes)
        self._metrics.kv_cache_bytes.labels(entry.name, entry.version).set_function(parts.cache_bytes)
        if parts.process_bytes is not None:
            gauge = self._metrics.decoding_process_memory_bytes.labels(entry.name, entry.version)
            gauge.set_function(parts.process_bytes)
            self._in_own_process.add(entry.full_name)

    def hide_parts(self, entry: Entry) -> None:
        """Take out what was shown of its parts."""
        labels = self._infos.pop(entry.full_name, None)
        if labels is None:
            return
        self._metrics.model_info.remove(*labels)
        for gauge in (self._metrics.model_weights_bytes, self._metrics.kv_cache_bytes):
            gauge.remove(entry.name, entry.version)
        if entry.full_name in self._in_own_process:
            self._in_own_process.remove(entry.full_name)
            self._metrics.decoding_process_memory_bytes.remove(entry.name, entry.version)

    def hide(self, entry: Entry) -> None:
        """Take out all that was shown of a version that is gone."""
        self.hide_parts(entry)
        for state in ModelState:
            self._metrics.model_state.remove(entry.name, entry.version, state.value)

    def count_load(self, duration_s: float) -> None:
        """Count a version that was loaded."""
        self._metrics.model_load_seconds.observe(duration_s)

    def count_failure(self, name: str) -> None:
        """Count a version that could not be loaded."""
        self._metrics.model_load_failures.labels(name).inc()

    def count_swap(self, name: str) -> None:
        """Count a change of what answers requests that name a model alone."""
        self._metrics.model_swaps.labels(name).inc()
