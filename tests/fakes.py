"""Fakes shared by tests: step models in NumPy, a manual clock, a quota store, and constructors of segments.

    ToyModel        a deterministic language model: logits are a hash of source and prefix
    FaultyToyModel  a ToyModel that loops, copies or returns nothing for certain sources
    TimedModel      wraps a model; encoder runs and steps take time on a manual clock
    FlakyModel      wraps a model and raises errors selected by the test
    GatedModel      wraps a model; each step waits until the test releases it
    ManualClock     a clock that the test advances
    SharedBuckets   a quota store that the test can make unavailable

All models implement the `StepModel` protocol, assert its correct use, and may be shared between threads.
"""

import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.decoding.step_model import (
    EncodedSource,
    FloatArray,
    IntArray,
    ModelLimits,
    Placeholder,
    StepBatch,
    StepModel,
    StepOutput,
    VocabularySpec,
)
from dragoman_service.security.rate_limits import Charge, TokenBucket
from dragoman_service.security.shared_quota import Shortfall

PAD, BOS, EOS, UNK = 0, 1, 2, 3
FIRST_WORD = 4
CACHE_BYTES = 4096  # of each model
GATE_TIMEOUT_S = 30.0  # only reached by a test that would otherwise hang


def make_segment(*words: int, **search: Any) -> Segment:
    """Return a segment with the given words and EOS as its source, and `SearchConfig` options by name."""
    options = {"max_target_tokens": 12, **search}
    return Segment(source_ids=(*words, EOS), search=SearchConfig(**options))


class ManualClock:
    """A clock in seconds that only the test advances."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.now_s += seconds


class SharedBuckets:
    """A `BucketStore` in memory, shared by several replicas."""

    def __init__(self, clock: ManualClock) -> None:
        self.is_away = False
        self.num_asked = 0
        self._buckets: dict[tuple[str, str], TokenBucket] = {}
        self._clock = clock

    async def take(self, charges: Sequence[Charge]) -> Shortfall | None:
        """Take all amounts; or take none, and return the first bucket with too little content."""
        self._ask()
        for position, charge in enumerate(charges):
            wait_s = self._bucket(charge).take(charge.amount)
            if wait_s:
                for taken in charges[:position]:
                    self._bucket(taken).refund(taken.amount)
                return Shortfall(charge=charge, retry_after_s=wait_s)
        return None

    async def refund(self, charges: Sequence[Charge]) -> None:
        """Return amounts to the buckets."""
        self._ask()
        for charge in charges:
            self._bucket(charge).refund(charge.amount)

    async def watch(self, interval_s: float) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    def _ask(self) -> None:
        self.num_asked += 1
        if self.is_away:
            raise ConnectionError("refused")

    def _bucket(self, charge: Charge) -> TokenBucket:
        if (charge.caller, charge.unit) not in self._buckets:
            self._buckets[charge.caller, charge.unit] = TokenBucket(
                rate_per_s=charge.rate_per_s, capacity=charge.capacity, clock=self._clock
            )
        return self._buckets[charge.caller, charge.unit]


class ToyModel:
    """A deterministic language model over `num_words` words and the four special tokens.

    `next_log_probs(source, prefix)` is a distribution drawn from a generator seeded with a hash of the model's seed,
    the source and the prefix: no structure, no ties, the same in any batch. The special tokens have their share of
    probability, so that a search that takes PAD, BOS or UNK is found out. `eos_bias` is added to the logit of EOS:
    large values end hypotheses early, very negative ones never. Words in `placeholders` have the same token id in
    source and target.
    """

    cache_bytes: int = CACHE_BYTES
    copied_bytes: tuple[int, int] = (0, 0)

    def __init__(
        self,
        *,
        num_words: int = 5,
        seed: int = 0,
        eos_bias: float = 0.0,
        max_source_tokens: int = 64,
        max_target_tokens: int = 200,
        placeholders: Sequence[int] = (),
    ) -> None:
        self.limits = ModelLimits(
            vocabulary=VocabularySpec(
                size=FIRST_WORD + num_words,
                pad_id=PAD,
                bos_id=BOS,
                eos_id=EOS,
                unk_id=UNK,
                placeholders=tuple(Placeholder(word, word) for word in placeholders),
            ),
            max_source_tokens=max_source_tokens,
            max_target_tokens=max_target_tokens,
        )
        self._seed = seed
        self._eos_bias = eos_bias
        self._cache: dict[tuple[tuple[int, ...], tuple[int, ...]], FloatArray] = {}

    def next_log_probs(self, source_ids: Sequence[int], prefix: Sequence[int]) -> FloatArray:
        """Return the natural log-probability of each token after a prefix (without BOS), [V]."""
        key = tuple(source_ids), tuple(prefix)
        if key not in self._cache:
            logits = self.logits(*key)
            self._cache[key] = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
        return self._cache[key]

    def logits(self, source_ids: tuple[int, ...], prefix: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the logits [V] after a prefix; subclasses may change them."""
        rng = np.random.default_rng(zlib.crc32(repr((self._seed, source_ids, prefix)).encode()))
        logits = rng.normal(scale=2.0, size=self.limits.vocabulary.size)
        logits[EOS] += self._eos_bias
        return logits

    def cross_attention(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
        """Return random weights [2, 3, T, S] that add up to 1; the weights of a token depend on its prefix."""
        weights = np.zeros((2, 3, len(target_ids), len(source_ids)))
        for step in range(len(target_ids)):
            key = self._seed, tuple(source_ids), tuple(target_ids[:step])
            logits = np.random.default_rng(zlib.crc32(repr(key).encode())).normal(
                scale=2.0, size=weights[:, :, 0].shape
            )
            weights[:, :, step] = np.exp(logits)
        normalised: FloatArray = (weights / weights.sum(axis=3, keepdims=True)).astype(np.float32)
        return normalised

    def encode(self, source_ids: Sequence[Sequence[int]]) -> list[EncodedSource]:
        assert source_ids
        assert all(1 <= len(source) <= self.limits.max_source_tokens for source in source_ids)
        return [EncodedSource(source_ids=tuple(source), cross=np.array(source)) for source in source_ids]

    def new_batch(self) -> StepBatch:
        return ToyBatch(self)


class FaultyToyModel(ToyModel):
    """A `ToyModel` with defects for sources that begin with certain words.

    Its targets repeat their last word (LOOPER), are the source (COPIER), or are empty (SILENCER).
    """

    LOOPER, COPIER, SILENCER = FIRST_WORD, FIRST_WORD + 1, FIRST_WORD + 2

    def logits(self, source_ids: tuple[int, ...], prefix: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the logits [V] after a prefix."""
        logits = super().logits(source_ids, prefix)
        if source_ids[0] == self.LOOPER and prefix:
            logits[prefix[-1]] += 15.0
        if source_ids[0] == self.COPIER and prefix == source_ids[: len(prefix)]:
            logits[source_ids[len(prefix)]] += 12.0
        if source_ids[0] == self.SILENCER and not prefix:
            logits[EOS] += 12.0
        return logits


class ToyBatch:
    """A running batch of a `ToyModel`; stores the tokens of every row and asserts correct use of the protocol."""

    def __init__(self, model: ToyModel) -> None:
        self._model = model
        self._sources: list[tuple[int, ...]] = []
        self._rows: list[list[tuple[int, ...]] | None] = []  # prefixes with BOS; None before the first step

    @property
    def num_segments(self) -> int:
        return len(self._sources)

    def start(self, sources: Sequence[EncodedSource]) -> None:
        assert sources
        self._sources += [tuple(source.cross.tolist()) for source in sources]
        self._rows += [None] * len(sources)

    def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
        wanted = np.broadcast_to(num_candidates, token_ids.shape)
        assert token_ids.shape == parents.shape
        assert token_ids.shape[0] == self.num_segments > 0
        assert 1 <= wanted.min() <= wanted.max() <= self._model.limits.vocabulary.size
        assert token_ids.min() >= 0
        assert token_ids.max() < self._model.limits.vocabulary.size
        self._rows = [
            self._extended(rows, tokens, origins)
            for rows, tokens, origins in zip(self._rows, token_ids.tolist(), parents.tolist(), strict=True)
        ]
        log_probs = np.stack(
            [
                [self._model.next_log_probs(source, row[1:]) for row in rows or ()]
                for source, rows in zip(self._sources, self._rows, strict=True)
            ]
        )
        candidates = np.argsort(-log_probs, axis=2, kind="stable")[:, :, : wanted.max()]
        is_wanted = np.arange(wanted.max()) < wanted[:, :, None]  # the others must not be looked at: they would win
        log_probs = np.where(is_wanted, np.take_along_axis(log_probs, candidates, axis=2), 1.0)
        return StepOutput(log_probs=log_probs, token_ids=np.where(is_wanted, candidates, 0))

    def cross_attention(self, segment: int, target_ids: Sequence[int]) -> FloatArray:
        assert 0 <= segment < self.num_segments
        assert target_ids
        return self._model.cross_attention(self._sources[segment], target_ids)

    def drop(self, keep: Sequence[int]) -> None:
        assert len(set(keep)) == len(keep)
        self._sources = [self._sources[index] for index in keep]
        self._rows = [self._rows[index] for index in keep]

    @staticmethod
    def _extended(rows: list[tuple[int, ...]] | None, tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
        if rows is None:
            assert tokens[0] == BOS
            return [(token,) for token in tokens]
        assert all(0 <= parent < len(rows) for parent in parents)
        return [(*rows[parent], token) for token, parent in zip(tokens, parents, strict=True)]


class WrappedModel:
    """A model that calls `before(operation, batch size)` ahead of each use of another.

    The operations are encode, new_batch, start, step, cross_attention and drop.
    """

    cache_bytes: int = CACHE_BYTES
    copied_bytes: tuple[int, int] = (0, 0)

    def __init__(self, inner: StepModel) -> None:
        self.inner = inner
        self.limits = inner.limits

    def before(self, operation: str, num_segments: int) -> None:
        """Hook called ahead of each operation; `num_segments` counts the segments of the batch, or the new ones."""

    def encode(self, source_ids: Sequence[Sequence[int]]) -> list[EncodedSource]:
        self.before("encode", len(source_ids))
        return self.inner.encode(source_ids)

    def new_batch(self) -> StepBatch:
        self.before("new_batch", 0)
        return WrappedBatch(self, self.inner.new_batch())


class WrappedBatch:
    """A running batch of a `WrappedModel`."""

    def __init__(self, model: WrappedModel, inner: StepBatch) -> None:
        self._model = model
        self._inner = inner

    @property
    def num_segments(self) -> int:
        return self._inner.num_segments

    def start(self, sources: Sequence[EncodedSource]) -> None:
        self._model.before("start", len(sources))
        self._inner.start(sources)

    def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
        self._model.before("step", self.num_segments)
        return self._inner.step(token_ids, parents, num_candidates=num_candidates)

    def cross_attention(self, segment: int, target_ids: Sequence[int]) -> FloatArray:
        self._model.before("cross_attention", self.num_segments)
        return self._inner.cross_attention(segment, target_ids)

    def drop(self, keep: Sequence[int]) -> None:
        self._model.before("drop", self.num_segments)
        self._inner.drop(keep)


class TimedModel(WrappedModel):
    """A model that advances its clock at each encoder run and step, and records its operations."""

    def __init__(self, inner: StepModel, *, encode_s: float = 2.0, step_s: float = 1.0) -> None:
        super().__init__(inner)
        self.clock = ManualClock(10.0)
        self.operations: list[tuple[str, int]] = []  # with the number of segments
        self._durations_s = {"encode": encode_s, "step": step_s}

    def before(self, operation: str, num_segments: int) -> None:
        """Let the operation take its time."""
        self.operations.append((operation, num_segments))
        self.clock.advance(self._durations_s.get(operation, 0.0))

    @property
    def encoded(self) -> list[int]:
        """Number of sources of each encoder run."""
        return [num_segments for operation, num_segments in self.operations if operation == "encode"]


class FlakyModel(WrappedModel):
    """A model whose operations raise an error if `should_fail(operation)` returns True."""

    def __init__(
        self, inner: StepModel, should_fail: Callable[[str], bool], *, error: type[Exception] = RuntimeError
    ) -> None:
        super().__init__(inner)
        self._should_fail = should_fail
        self._error = error

    def before(self, operation: str, num_segments: int) -> None:
        """Raise the error if `should_fail` returns True."""
        if self._should_fail(operation):
            raise self._error(f"{operation} broken on purpose")


class GatedModel(WrappedModel):
    """A model whose steps wait at a gate until the test releases them, so that tests need no sleep.

    model.wait_for_step()   returns once one more thread stands at the gate, with the size of its batch
    model.let_pass(3)       three steps may run
    model.open()            from now on nothing waits
    """

    def __init__(self, inner: StepModel) -> None:
        super().__init__(inner)
        self.step_sizes: list[int] = []
        """Segments in the batch at each step that arrived, in order."""

        self._arrived = threading.Semaphore(0)
        self._allowed = threading.Semaphore(0)
        self._is_open = threading.Event()

    def before(self, operation: str, num_segments: int) -> None:
        """Wait at the gate."""
        if operation != "step":
            return
        self.step_sizes.append(num_segments)
        self._arrived.release()
        if not self._is_open.is_set():
            assert self._allowed.acquire(timeout=GATE_TIMEOUT_S), "the test never let this step pass"

    def wait_for_step(self) -> int:
        """Wait until one more step has arrived at the gate; return the size of the latest batch to arrive."""
        assert self._arrived.acquire(timeout=GATE_TIMEOUT_S), "no step arrived"
        return self.step_sizes[-1]

    def pass_until(self, num_segments: int, *, max_steps: int = 5000) -> None:
        """Release steps until a step with `num_segments` segments waits, as messages arrive some steps late."""
        for _ in range(max_steps):
            if self.wait_for_step() == num_segments:
                return
            self.let_pass()
        raise AssertionError(f"no step of {num_segments} segments came")

    def let_pass(self, num_steps: int = 1) -> None:
        """Release waiting or future steps."""
        self._allowed.release(num_steps)

    def open(self) -> None:
        """Release all steps from now on."""
        self._is_open.set()
        self._allowed.release(1000)
