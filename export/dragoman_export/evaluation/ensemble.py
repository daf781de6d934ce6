"""Opens a bundle, a checkpoint, or an ensemble of several, as one model for `evaluate` and `distill`."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dragoman_export.bundle_writer import BundleDescription, exporter_version, write_bundle
from dragoman_export.errors import ExportError, SettingError
from dragoman_export.evaluation.translation import BundleTextModel
from dragoman_export.onnx_export.network import Network
from dragoman_export.trained_model import TrainedModel
from dragoman_service.bundle.files import MANIFEST_NAME, Bundle, file_entry, open_bundle
from dragoman_service.bundle.manifest import Provenance
from dragoman_service.decoding.step_model import (
    EncodedSource,
    FloatArray,
    IntArray,
    ModelLimits,
    StepBatch,
    StepModel,
    StepOutput,
)
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import SentencePieceTokenizer, open_tokenizer

_UNKNOWN_LANGUAGE = "und"


class Ensemble:
    """A `StepModel` that averages the probabilities of networks with one vocabulary."""

    def __init__(self, members: Sequence[StepModel]) -> None:
        """Combine two or more networks; ExportError if their vocabularies differ."""
        self._members = tuple(members)
        limits = [member.limits for member in members]
        if any(each.vocabulary != limits[0].vocabulary for each in limits):
            raise ExportError("the networks of the ensemble have different vocabularies")
        self.limits = ModelLimits(
            vocabulary=limits[0].vocabulary,
            max_source_tokens=min(each.max_source_tokens for each in limits),
            max_target_tokens=min(each.max_target_tokens for each in limits),
        )

    def encode(self, source_ids: Sequence[Sequence[int]]) -> list[EncodedSource]:
        """Encode sources with each network; `cross` holds one encoding per network."""
        encoded = zip(*(member.encode(source_ids) for member in self._members), strict=True)
        return [EncodedSource(source_ids=each[0].source_ids, cross=each) for each in encoded]

    def new_batch(self) -> "EnsembleBatch":
        """Return an empty running batch."""
        return EnsembleBatch([member.new_batch() for member in self._members], self.limits.vocabulary.size)


class EnsembleBatch:
    """One running batch per network, with the same segments and rows."""

    def __init__(self, batches: Sequence[StepBatch], vocabulary_size: int) -> None:
        self._batches, self._vocabulary_size = batches, vocabulary_size

    @property
    def num_segments(self) -> int:
        """B, segments in the batch."""
        return self._batches[0].num_segments

    def start(self, sources: Sequence[EncodedSource]) -> None:
        """Append new segments, encoded by the ensemble."""
        for index, batch in enumerate(self._batches):
            batch.start([source.cross[index] for source in sources])

    def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
        """Append one token to every row and return the best next tokens by mean probability.

        Every network scores its whole vocabulary, because a token unlikely for one network may be likely for another.
        """
        outputs = [batch.step(token_ids, parents, num_candidates=self._vocabulary_size) for batch in self._batches]
        total = _by_token(outputs[0])
        for output in outputs[1:]:
            np.logaddexp(total, _by_token(output), out=total)
        total -= np.float32(np.log(len(outputs)))
        best = np.argsort(-total, axis=-1, kind="stable")[..., : int(np.max(num_candidates))]
        return StepOutput(log_probs=np.take_along_axis(total, best, axis=-1), token_ids=best)

    def cross_attention(self, segment: int, target_ids: Sequence[int]) -> FloatArray:
        """Return the weights of the first network."""
        return self._batches[0].cross_attention(segment, target_ids)

    def drop(self, keep: Sequence[int]) -> None:
        """Remove all segments except those at the given indices."""
        for batch in self._batches:
            batch.drop(keep)


def _by_token(output: StepOutput) -> FloatArray:
    # Returns the log-probabilities [B, K, V] in the order of the vocabulary.
    log_probs = np.empty_like(output.log_probs)
    np.put_along_axis(log_probs, output.token_ids, output.log_probs, axis=-1)
    return log_probs


@contextmanager
def open_text_model(paths: Sequence[Path], settings: RuntimeSettings) -> Iterator[tuple[BundleTextModel, str]]:
    """Open bundles, or paths for `TrainedModel.find`, as one model; yield it and its precisions.

    Several form an ensemble with the tokenizer and languages of the first. Precision and shortlist apply to bundles;
    other models run in float32. SettingError if a shortlist is requested for an ensemble, whose members must score the
    same tokens; ExportError if their vocabularies differ.
    """
    if settings.shortlist and len(paths) > 1:
        raise SettingError("--shortlist", "given", "a single model")
    with tempfile.TemporaryDirectory() as temporary:
        bundles = [
            open_bundle(path)
            if (path / MANIFEST_NAME).is_file()
            else float_bundle(TrainedModel.find(path), Path(temporary) / str(index))
            for index, path in enumerate(paths)
        ]
        tokenizers = [open_tokenizer(bundle) for bundle in bundles]
        for path, tokenizer in zip(paths, tokenizers, strict=True):
            if _vocabulary(tokenizer) != _vocabulary(tokenizers[0]):
                raise ExportError(f"vocabulary of {path} differs from {paths[0]}")
        graphs, precisions = [], []
        for path, bundle in zip(paths, bundles, strict=True):
            is_given = bundle.directory == path  # otherwise a temporary float32 bundle
            own_settings = settings if is_given else settings.model_copy(update={"precision": None})
            precisions.append(own_settings.precision or bundle.manifest.default_precision)
            graphs.append(open_step_model(bundle, own_settings))
        graph = graphs[0] if len(graphs) == 1 else Ensemble(graphs)
        yield BundleTextModel.of(graph, tokenizers[0], bundles[0].manifest), "+".join(dict.fromkeys(precisions))


def float_bundle(trained: TrainedModel, directory: Path) -> Bundle:
    """Write a temporary float32 bundle and open it; only the languages of multilingual models are known."""
    source, target = trained.first_pair or (_UNKNOWN_LANGUAGE, _UNKNOWN_LANGUAGE)
    description = BundleDescription(
        name="scored",
        version="1",
        source_language=source,
        target_language=target,
        languages=trained.languages,
        limits=trained.limits,
        precisions=("fp32",),
        provenance=Provenance(
            exporter_version=exporter_version(),
            checkpoint=trained.checkpoint.name,
            checkpoint_sha256=file_entry(trained.checkpoint).sha256,
        ),
    )
    write_bundle(directory, Network.of(trained.load()), trained.read_vocabulary(), description)
    return open_bundle(directory)


def _vocabulary(tokenizer: SentencePieceTokenizer) -> tuple[object, ...]:
    # Everything that maps token ids to text.
    sides = (
        tokenizer.pieces(range(tokenizer.vocabulary_size)),
        tokenizer.source_pieces(range(tokenizer.source_vocabulary_size)),
    )
    return (*sides, tokenizer.source_prefix, tokenizer.source_suffix, tokenizer.target_prefix)
