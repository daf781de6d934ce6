"""Compares a bundle with the imported model, run by its own library."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from dragoman_export.data.reader import Pair
from dragoman_export.errors import ImportFormatError
from dragoman_export.evaluation.translation import BundleTextModel
from dragoman_export.evaluation.verification import LOG_PROB_TOLERANCE, Check, score_exported
from dragoman_export.importers.reference_models.ctranslate2 import CTranslate2Original
from dragoman_export.importers.reference_models.huggingface import HuggingFaceOriginal
from dragoman_export.importers.reference_models.opennmt import EoleOriginal, OpenNmtOriginal
from dragoman_export.importers.reference_models.original import Original
from dragoman_service.bundle.files import Bundle
from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.text.planning import EXTRA_TARGET_TOKENS
from dragoman_service.text.tokenizer import SentencePieceTokenizer

# share of sentences that may differ, where two hypotheses have equal scores except for rounding
_MAX_UNEQUAL_SHARE: Final = 0.02


def open_original(path: Path, bundle: Bundle, tokenizer: SentencePieceTokenizer) -> Original:
    """Return the reference model of a directory or of an OpenNMT-py checkpoint.

    Raises:
        ImportFormatError: if the library is missing, cannot load the model, or is fairseq.
    """
    tokenization = bundle.manifest.tokenization
    source_model = bundle.directory / (tokenization.source_model or bundle.manifest.tokenizer)
    if path.is_file():
        return OpenNmtOriginal(path, tokenizer, source_model)
    if (path / "model.bin").is_file():
        return CTranslate2Original(path, tokenizer, source_model)
    if (path / "model.00.safetensors").is_file():
        return EoleOriginal(path, tokenizer, source_model)
    if any(path.glob("dict.*.txt")):
        raise ImportFormatError(
            f"{path}: fairseq models cannot be compared: fairseq does not support this Python version"
        )
    return HuggingFaceOriginal(path, tokenizer)


def check_original(
    original: Original, model: BundleTextModel, pairs: Sequence[Pair], *, beam_size: int
) -> Iterator[Check]:
    """Compare token ids, log-probabilities at every step, and searches on real sentences.

    A library that narrows its beam is compared by greedy search, and by beam searches that end at the length of the
    reference. `model` has the float32 graphs.
    """
    tokenizer, limits = model.tokenizer, (model.max_source_tokens, model.max_target_tokens)
    differing = [pair for pair in pairs if tokenizer.encode_pair(pair.source, "")[0] != original.encode(pair.source)]
    of_all = f"of {len(pairs)} sentences"
    yield Check(claim="token ids = original", measured=len(differing), limit=0, unit="sentences", detail=of_all)
    encoded = [tokenizer.encode_pair(pair.source, pair.target) for pair in pairs]
    fitting = [pair for pair in encoded if all(len(side) <= limit for side, limit in zip(pair, limits, strict=True))]
    largest = max((_largest_difference(original, model.graph, *pair) for pair in fitting), default=0.0)
    detail = f"largest over {sum(len(target) for _, target in fitting)} target tokens of {len(fitting)} sentences"
    claim = "ONNX fp32 = original"
    yield Check(claim=claim, measured=largest, limit=LOG_PROB_TOLERANCE, unit="nats", detail=detail)
    for name, searches in _searches(original, model, fitting, beam_size).items():
        unequal = sum(search_exported(model.graph, *each) != original.search(*each) for each in searches)
        claim, limit = f"{name} = original", _MAX_UNEQUAL_SHARE * len(searches)
        yield Check(
            claim=claim, measured=unequal, limit=limit, unit="sentences", detail=f"of {len(searches)} sentences"
        )


def _searches(
    original: Original, model: BundleTextModel, pairs: Sequence[tuple[list[int], list[int]]], beam_size: int
) -> Mapping[str, list[tuple[list[int], SearchConfig]]]:
    # Returns sources and searches that both libraries support, by name.
    longest = {len(source): min(len(source) + EXTRA_TARGET_TOKENS, model.max_target_tokens) for source, _ in pairs}
    if not original.narrows_beam:
        searched = [(source, _search(model, beam_size, most=longest[len(source)])) for source, _ in pairs]
        return {f"beam {beam_size}": searched}
    return {
        "greedy": [(source, _search(model, 1, most=longest[len(source)])) for source, _ in pairs],
        f"beam {beam_size}, length given": [
            (source, _search(model, beam_size, least=len(target) - 1, most=len(target) - 1))
            for source, target in pairs
            if len(target) > 1
        ],
    }


def _search(model: BundleTextModel, beam_size: int, *, most: int, least: int = 0) -> SearchConfig:
    return SearchConfig(
        beam_size=beam_size,
        length_penalty=0.0,
        min_target_tokens=least,
        max_target_tokens=most,
        target_prefix=model.tokenizer.target_prefix,
    )


def search_exported(graph: StepModel, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
    """Return the best target that `RunningBatch` finds with a graph, EOS last if it ends."""
    batch = RunningBatch(graph)
    batch.start([Segment(source_ids=tuple(source_ids), search=search)])
    while not (ended := batch.step().ended):
        pass
    return list(ended[0].hypotheses[0].token_ids)


def _largest_difference(original: Original, graph: StepModel, source_ids: list[int], target_ids: list[int]) -> float:
    own = np.concatenate(list(score_exported(graph, [(source_ids, target_ids)])))
    foreign = original.score(source_ids, target_ids)
    if foreign.ndim == 1:
        own = own[range(len(target_ids)), target_ids]
    return float(np.abs(own - foreign).max()) if own.shape == foreign.shape else math.inf
