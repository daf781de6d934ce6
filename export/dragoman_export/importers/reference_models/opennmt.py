"""OpenNMT-py and eole models, run by these libraries."""

import logging
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from sentencepiece import SentencePieceProcessor
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.files import read_checkpoint
from dragoman_export.importers.reference_models.original import load_modules, loading
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_service.datatypes import SearchConfig
from dragoman_service.text.tokenizer import SentencePieceTokenizer

_INSTALL_OPENNMT: Final = (
    "configargparse fasttext-wheel pyahocorasick pyonmttok rapidfuzz spacy; pip install --no-deps OpenNMT-py"
)
# packages required for loading only; the declared dependencies include older versions of PyTorch
_INSTALL_EOLE: Final = "pyonmttok torch-optimi; pip install --no-deps eole"
_LOG: Final = logging.getLogger(__name__)  # eole would print otherwise


class _Original(ABC):
    # Common part, in float32 on the CPU. Texts are split by the SentencePiece model; the vocabularies define the known
    # pieces. The search has no length penalty and never generates padding, unknown tokens or the start token.
    narrows_beam = True

    def __init__(
        self, translator: Any, translate: Any, tokenizer: SentencePieceTokenizer, source_model: Path, *, start: str
    ) -> None:
        self._translator = translator
        self._translate = translate
        self._tokenizer = tokenizer
        self._processor = SentencePieceProcessor(model_file=str(source_model))
        self._lookup = translator.vocabs["src"].lookup_token
        self._start: int = translator.vocabs["tgt"].lookup_token(start)
        # Source ids differ from the library's vocabulary where special tokens were moved.
        self._rows = [self._lookup(piece) for piece in tokenizer.source_pieces(range(tokenizer.source_vocabulary_size))]
        never = [tokenizer.pad_id, tokenizer.bos_id]
        decode = translator._decode_and_generate

        def decode_without(*args: Any, **options: Any) -> tuple[Tensor, Any]:
            log_probs, attention = decode(*args, **options)
            log_probs[..., [token_id for token_id in never if token_id < log_probs.shape[-1]]] = -torch.inf
            return log_probs, attention

        translator._decode_and_generate = decode_without

    def encode(self, source: str) -> list[int]:
        tokenizer = self._tokenizer
        ids = [self._rows.index(self._lookup(str(piece))) for piece in self._processor.EncodeAsPieces(source)]
        return [*tokenizer.source_prefix, *ids, *tokenizer.source_suffix]

    @torch.inference_mode()
    def score(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
        source, length = self._source(source_ids)
        log_probs = self._log_probs(source, torch.tensor([[self._start, *target_ids]]), length)
        if log_probs.shape[1] != self._tokenizer.vocabulary_size:
            log_probs = log_probs[range(len(target_ids)), list(target_ids)]
        scores: FloatArray = log_probs.numpy()
        return scores

    @torch.inference_mode()
    def search(self, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
        translator = self._translator
        translator.beam_size = search.beam_size
        translator.min_length, translator.max_length = search.min_target_tokens, search.max_target_tokens
        source, length = self._source(source_ids)
        found = self._translate({"src": source, "srclen": length}, attn_debug=False)
        ids: list[int] = found["predictions"][0][0].tolist()
        return ids

    def _source(self, source_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = [self._rows[token_id] for token_id in source_ids]
        return torch.tensor([rows]), torch.tensor([len(rows)])

    @abstractmethod
    def _log_probs(self, source: Tensor, target: Tensor, length: Tensor) -> Tensor:
        """Return log-probabilities [T, V] of all tokens of a target [1, 1 + T] but the first."""


class OpenNmtOriginal(_Original):
    """A checkpoint of OpenNMT-py 3."""

    def __init__(self, path: Path, tokenizer: SentencePieceTokenizer, source_model: Path) -> None:
        if not {"opt", "vocab"} <= read_checkpoint(path).keys():  # also checks that it is safe to load
            raise ImportFormatError(f"{path} has no opt and vocab: not a checkpoint of OpenNMT-py")
        builder, translating = load_modules("onmt.model_builder", "onmt.translate", install=_INSTALL_OPENNMT)
        options = Namespace(models=[str(path)], gpu=-1, gpu_ranks=[], world_size=1, precision="fp32")
        with loading("OpenNMT-py", path), torch.serialization.safe_globals([Namespace]):
            vocabularies, self._model, _ = builder.load_test_model(options)
            translator = translating.Translator(
                self._model,
                vocabularies,
                max_length_ratio=0,
                ban_unk_token=True,
                global_scorer=translating.GNMTGlobalScorer(1, 0, "none", "none"),
                report_score=False,
            )
        start = vocabularies["decoder_start_token"]
        super().__init__(translator, translator.translate_batch, tokenizer, source_model, start=start)

    def _source(self, source_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        source, length = super()._source(source_ids)
        return source[..., None], length

    def _log_probs(self, source: Tensor, target: Tensor, length: Tensor) -> Tensor:
        states, _ = self._model(source, target[..., None], length)
        return torch.log_softmax(self._model.generator(states[0]), dim=-1)


class EoleOriginal(_Original):
    """The directory of an eole model."""

    def __init__(self, directory: Path, tokenizer: SentencePieceTokenizer, source_model: Path) -> None:
        running, predicting = load_modules("eole.config.run", "eole.predict", install=_INSTALL_EOLE)
        rules = {"length_penalty": "none", "ban_unk_token": True, "max_length_ratio": 0}
        with loading("eole", directory):
            config = running.PredictConfig(model_path=[str(directory)], src="", compute_dtype="fp32", **rules)
            predictor = predicting.build_predictor(config, logger=_LOG)
        start = predictor.vocabs["decoder_start_token"]
        super().__init__(predictor, predictor.predict_batch, tokenizer, source_model, start=start)

    def _log_probs(self, source: Tensor, target: Tensor, length: Tensor) -> Tensor:
        log_probs: Tensor = self._translator.model.compute_log_probs(source, target, length)["log_probs"]
        return log_probs[0]
