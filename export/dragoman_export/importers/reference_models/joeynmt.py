"""Runs of JoeyNMT, run by JoeyNMT."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
import yaml
from sentencepiece import SentencePieceProcessor
from torch import Tensor

from dragoman_export.importers.files import read_checkpoint, read_plain
from dragoman_export.importers.reference_models.original import load_modules, loading
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_service.datatypes import SearchConfig

_MODULES: Final = ("joeynmt.config", "joeynmt.model", "joeynmt.search", "joeynmt.vocabulary")
_INSTALL: Final = "subword-nmt tensorboard importlib-metadata; pip install --no-deps joeynmt"
"""Of what JoeyNMT asks for (protobuf 3 is not what this project needs) the packages that it cannot be loaded without,
beside those that are here."""


class JoeyNmtOriginal:
    """A run of JoeyNMT 2, on the CPU in float32, whose token ids are ours.

    Texts are split by the SentencePiece model that was imported, without the pieces that the vocabulary lacks: to leave
    them out, JoeyNMT needs an older sentencepiece. It has no length penalty here, and never chooses unknown tokens.
    """

    narrows_beam = True

    def __init__(self, directory: Path, source_model: Path) -> None:
        """Load the best checkpoint; ImportFormatError if the library is missing, or cannot."""
        config, model, self._searching, vocabulary = load_modules(*_MODULES, install=_INSTALL)
        settings = yaml.safe_load(read_plain(directory / "config.yaml"))
        with loading("joeynmt", directory):
            special = config._check_special_symbols(dict(settings["data"].get("special_symbols") or {}))
            self._source, target = (
                vocabulary.Vocabulary(
                    read_plain(directory / f"{side}_vocab.txt").decode().splitlines(), SimpleNamespace(**special)
                )
                for side in ("src", "trg")
            )
            self._bos = target.bos_index
            self._model = model.build_model(settings["model"], self._source, target).eval()
            self._model.load_state_dict(read_checkpoint(directory / "best.ckpt")["model_state"])
        self._splitter = SentencePieceProcessor(model_file=str(source_model))

    def encode(self, source: str) -> list[int]:
        """Return all token ids of a source, EOS included."""
        ids, _, _ = self._source.sentences_to_ids([self._splitter.EncodeAsPieces(source)], bos=False, eos=True)
        return list(ids[0])

    @torch.inference_mode()
    def score(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
        """Return the log-probabilities [T, V] of every step of a given target, EOS last."""
        encoded = self._encode(source_ids)
        inputs = torch.tensor([[self._bos, *target_ids[:-1]]])
        told = {"unroll_steps": None, "decoder_hidden": None, "trg_mask": torch.ones(1, 1, 1, dtype=torch.bool)}
        logits: Tensor = self._model(return_type="decode", trg_input=inputs, **encoded, **told)[0]
        log_probs: FloatArray = torch.log_softmax(logits[0], dim=-1).numpy()
        return log_probs

    @torch.inference_mode()
    def search(self, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
        """Return the best target, EOS last if it ends; of the search only sizes and limits are obeyed."""
        best, _, _ = self._searching.beam_search(
            model=self._model,
            beam_size=search.beam_size,
            alpha=-1,
            generate_unk=False,
            min_output_length=search.min_target_tokens,
            max_output_length=search.max_target_tokens,
            **self._encode(source_ids),
        )
        return [int(token_id) for token_id in best[0]]

    def _encode(self, source_ids: Sequence[int]) -> dict[str, Any]:
        """Return what the decoder needs of a source."""
        mask = torch.ones(1, 1, len(source_ids), dtype=torch.bool)
        source = {"src": torch.tensor([list(source_ids)]), "src_length": torch.tensor([len(source_ids)])}
        states = self._model(return_type="encode", src_mask=mask, **source)[0]
        return {"encoder_output": states, "encoder_hidden": None, "src_mask": mask}
