"""Hugging Face models, run by transformers."""

from collections.abc import Sequence
from pathlib import Path

import torch

from dragoman_export.importers.files import read_json
from dragoman_export.importers.reference_models.original import load_modules, loading
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_service.datatypes import SearchConfig
from dragoman_service.text.tokenizer import SentencePieceTokenizer


class HuggingFaceOriginal:
    """A Hugging Face model in float32 on the CPU, for the languages of a tokenizer.

    The search follows this project's rules: no length penalty, no padding or unknown tokens, no second normalisation,
    and no forced EOS at the limit.
    """

    narrows_beam = False

    def __init__(self, directory: Path, tokenizer: SentencePieceTokenizer) -> None:
        (library,) = load_modules("transformers", install="transformers")
        self._tokenizer = tokenizer
        self._text_prefix, languages = _languages(directory, tokenizer)
        with loading("transformers", directory):
            self._original = library.AutoTokenizer.from_pretrained(directory, local_files_only=True, **languages)
            self._model = library.AutoModelForSeq2SeqLM.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False, dtype=torch.float32
            ).eval()
        self._new_config = library.GenerationConfig

    def encode(self, source: str) -> list[int]:
        """Return all token ids of a source, including tag and EOS."""
        ids: list[int] = self._original(self._text_prefix + source).input_ids
        return ids

    def encode_target(self, target: str) -> list[int]:
        """Return all token ids of a target, including tag and EOS."""
        ids: list[int] = self._original(text_target=target).input_ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a target without special tokens."""
        return str(self._original.decode(list(token_ids), skip_special_tokens=True))

    @torch.inference_mode()
    def score(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
        """Return the log-probabilities [T, V] of every step of a target, EOS last."""
        inputs = torch.tensor([[self._tokenizer.bos_id, *target_ids[:-1]]])
        logits = self._model(input_ids=torch.tensor([list(source_ids)]), decoder_input_ids=inputs).logits
        log_probs: FloatArray = torch.log_softmax(logits[0].float(), dim=-1).numpy()
        return log_probs

    def search(self, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
        """Return the best target, EOS last if it ends; only sizes and limits of `search` apply."""
        tokenizer = self._tokenizer
        # Set on the model, because `generate` completes an argument with the model's defaults.
        self._model.generation_config = self._new_config(
            num_beams=search.beam_size,
            min_new_tokens=search.min_target_tokens,
            max_new_tokens=search.max_target_tokens,
            length_penalty=0.0,
            bad_words_ids=[[token_id] for token_id in (tokenizer.pad_id, tokenizer.unk_id)],
            forced_bos_token_id=tokenizer.target_prefix[0] if tokenizer.target_prefix else None,
            pad_token_id=tokenizer.pad_id,
            eos_token_id=tokenizer.eos_id,
            decoder_start_token_id=tokenizer.bos_id,
        )
        ids: list[int] = self._model.generate(torch.tensor([list(source_ids)]))[0, 1:].tolist()
        return ids


def _languages(directory: Path, tokenizer: SentencePieceTokenizer) -> tuple[str, dict[str, str]]:
    # Returns the text before each source, and the language arguments of the tokenizer.
    source, target = (tokenizer.source_pieces(tokenizer.source_prefix), tokenizer.pieces(tokenizer.target_prefix))
    if read_json(directory / "config.json").get("model_type") == "marian":
        return "".join(f"{tag} " for tag in source), {}
    return "", {"src_lang": source[0].strip("_"), "tgt_lang": target[0].strip("_")} if source and target else {}
