"""Runs the libraries whose checkpoints are imported."""

import contextlib
import dataclasses
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

BEAM_SIZE, SHORTEST, LONGEST = 4, 5, 24
Pairs = Sequence[tuple[list[int], list[int]]]  # token ids of sources and targets, EOS last if the system uses it


@dataclass(frozen=True)
class LibraryResult:
    """Results of a library for one of `System.pairs`."""

    log_probs: list[float]  # of the target tokens
    beam: list[int]  # best target of a beam search without length penalty, padding and unknown tokens; EOS last


def chosen(scores: Tensor, target_ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each token; scores [T, V]."""
    return [round(float(row[token_id]), 6) for row, token_id in zip(scores, target_ids, strict=True)]


@torch.inference_mode()
def run_fairseq(directory: Path, pairs: Pairs) -> list[LibraryResult]:
    """Return the results of fairseq for a checkpoint; ImportError if it is missing."""
    with _hashable_dataclasses():
        from fairseq.data import Dictionary  # noqa: PLC0415
        from fairseq.models.transformer import TransformerModel  # noqa: PLC0415
        from fairseq.sequence_generator import SequenceGenerator  # noqa: PLC0415
    stored = torch.load(directory / "checkpoint_best.pt", weights_only=False)
    source, target = (Dictionary.load(str(directory / f"dict.{language}.txt")) for language in ("en", "de"))
    task = SimpleNamespace(source_dictionary=source, target_dictionary=target)
    model = TransformerModel.build_model(stored["cfg"]["model"], task).eval()
    model.load_state_dict(stored["model"], strict=True)
    lengths = {"max_len_a": 0, "max_len_b": LONGEST - 1, "min_len": SHORTEST}
    rules = {"beam_size": BEAM_SIZE, "normalize_scores": False, "unk_penalty": 1e6, **lengths}
    generator = SequenceGenerator([model], target, **rules)
    results = []
    for source_ids, target_ids in pairs:
        tokens = {"src_tokens": torch.tensor([source_ids]), "src_lengths": torch.tensor([len(source_ids)])}
        inputs = torch.tensor([[target.eos(), *target_ids[:-1]]])
        scores = model.get_normalized_probs(model(**tokens, prev_output_tokens=inputs), log_probs=True)[0]
        best = generator.generate([model], {"net_input": tokens})[0][0]["tokens"].tolist()
        results.append(LibraryResult(chosen(scores, target_ids), best))
    return results


@contextlib.contextmanager
def _hashable_dataclasses() -> Iterator[None]:
    original = dataclasses.dataclass

    def patched(cls: Any = None, /, **options: Any) -> Any:
        def made(cls: Any) -> Any:
            own = {} if options.get("frozen") or "__hash__" in cls.__dict__ else {"unsafe_hash": True}
            return original(cls, **options, **own)

        return made if cls is None else made(cls)

    dataclasses.dataclass = patched
    try:
        yield
    finally:
        dataclasses.dataclass = original


@torch.inference_mode()
def run_opennmt(directory: Path, pairs: Pairs) -> list[LibraryResult]:
    """Return the results of OpenNMT-py for a checkpoint; ImportError if it is missing."""
    from onmt.model_builder import load_test_model  # noqa: PLC0415
    from onmt.translate import GNMTGlobalScorer, Translator  # noqa: PLC0415

    options = Namespace(models=[str(directory / "model.pt")], gpu=-1, gpu_ranks=[], world_size=1, precision="fp32")
    with torch.serialization.safe_globals([Namespace]):
        vocabularies, model, _ = load_test_model(options)
    lengths = {"min_length": SHORTEST, "max_length": LONGEST, "max_length_ratio": 0}
    scorer = GNMTGlobalScorer(1, 0, "none", "none")
    rules = {"beam_size": BEAM_SIZE, "ban_unk_token": True, "global_scorer": scorer, "report_score": False}
    translator = Translator(model, vocabularies, **rules, **lengths)
    results = []
    for source_ids, target_ids in pairs:
        source, length = torch.tensor([source_ids])[..., None], torch.tensor([len(source_ids)])
        states, _ = model(source, torch.tensor([[2, *target_ids]])[..., None], length)
        scores = torch.log_softmax(model.generator(states[0]), dim=-1)
        best = translator.translate_batch({"src": source, "srclen": length}, attn_debug=False)
        results.append(LibraryResult(chosen(scores, target_ids), best["predictions"][0][0].tolist()))
    return results


@torch.inference_mode()
def run_eole(directory: Path, pairs: Pairs) -> list[LibraryResult]:
    """Return the results of eole for a model; ImportError if it is missing."""
    from eole.config.run import PredictConfig  # noqa: PLC0415
    from eole.predict import build_predictor  # noqa: PLC0415

    lengths = {"min_length": SHORTEST, "max_length": LONGEST}
    rules = {"beam_size": BEAM_SIZE, "length_penalty": "none", "ban_unk_token": True, "max_length_ratio": 0, **lengths}
    config = PredictConfig(model_path=[str(directory)], src="", compute_dtype="fp32", **rules)
    predictor = build_predictor(config)
    results = []
    for source_ids, target_ids in pairs:
        source, length = torch.tensor([source_ids]), torch.tensor([len(source_ids)])
        scores = predictor.model.compute_log_probs(source, torch.tensor([[2, *target_ids]]), length)["log_probs"][0]
        best = predictor.predict_batch({"src": source, "srclen": length}, attn_debug=False)
        results.append(LibraryResult(chosen(scores, target_ids), best["predictions"][0][0].tolist()))
    return results
