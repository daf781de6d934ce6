"""Tiny checkpoints of fairseq and JoeyNMT with random weights, and what those libraries compute with them.

Neither library can stand beside what this project needs, so `tests/parity/originals.json` holds what they said. To make
it again, with each library where Python finds it (fairseq 0.12.2 needs omegaconf 2.0 and hydra-core 1.0; JoeyNMT 2.3.0
sacremoses and subword-nmt; of each `pip install --no-deps --target DIR` is enough):

    PYTHONPATH=proto:DIR python -m tests.foreign_checkpoints
"""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.foreign_models import pieces, trained
from tests.tiny_bundle import SENTENCES

EXPECTED = Path(__file__).parent / "parity" / "originals.json"
NUM_TOKENS, NUM_SOURCE_TOKENS = 101, 97
"""Of every vocabulary, odd; of that of sources where it is another. Words that nobody uses fill them up."""
PAIRS = (
    ((5, 17, 4, 40, 33, 2), (9, 31, 6, 28, 2)),
    ((60, 8, 2), (12, 55, 7, 7, 90, 41, 2)),
)
"""Token ids of sources and targets, EOS last as in fairseq."""
BEAM_SIZE, SHORTEST, LONGEST = 4, 5, 24
_D, _HEADS, _FFN, _LAYERS, _POSITIONS = 16, 2, 24, 2, 64
_EOS_LOGIT = 8.0
"""Head start of EOS, so that most targets end before the limit."""

FAIRSEQ: Mapping[str, Mapping[str, Any]] = {
    "post-norm, shared": {"share_all_embeddings": True},
    "pre-norm, two dictionaries": {
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "share_decoder_input_output_embed": True,
        "no_scale_embedding": True,
        "activation_fn": "gelu",
    },
    "learned positions, nothing shared": {
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "layernorm_embedding": True,
        "max_target_positions": _POSITIONS - 8,
    },
    "no positions": {"no_token_positional_embeddings": True, "share_all_embeddings": True},
}
"""Options of a model by what is special in it."""


def save_fairseq(directory: Path, options: Mapping[str, Any], *, seed: int = 24) -> None:
    """Write `checkpoint_best.pt`, two dictionaries and a SentencePiece model as fairseq does when it trains."""
    directory.mkdir(parents=True)
    is_shared = options.get("share_all_embeddings", False)
    sizes = {"de": NUM_TOKENS, "en": NUM_TOKENS if is_shared else NUM_SOURCE_TOKENS}
    model = trained(SENTENCES, size=70)
    (directory / "spm.model").write_bytes(model)
    for language, size in sizes.items():
        lines = [f"{piece} 1\n" for piece in _filled(pieces(model)[3:], size - 4)]
        (directory / f"dict.{language}.txt").write_text("".join(lines), encoding="utf-8")
    state = _fairseq_weights(options, sizes["en"], sizes["de"], seed)
    model_options = argparse.Namespace(**{**_FAIRSEQ_OPTIONS, **options})
    cfg = {"_name": None, "model": model_options, "task": {"_name": "translation", **_LANGUAGES}}
    stored = {"args": None, "cfg": cfg, "model": state, "extra_state": {"epoch": 1}, "last_optimizer_state": {}}
    torch.save(stored, directory / "checkpoint_best.pt")


_LANGUAGES = {"source_lang": "en", "target_lang": "de"}
_FAIRSEQ_OPTIONS: Mapping[str, Any] = {
    "arch": "transformer",
    "task": "translation",
    **{f"{stack}_embed_dim": _D for stack in ("encoder", "decoder")},
    **{f"{stack}_ffn_embed_dim": _FFN for stack in ("encoder", "decoder")},
    **{f"{stack}_attention_heads": _HEADS for stack in ("encoder", "decoder")},
    **{f"{stack}_layers": _LAYERS for stack in ("encoder", "decoder")},
    **{f"{stack}_layers_to_keep": None for stack in ("encoder", "decoder")},
    "max_source_positions": _POSITIONS,
    "max_target_positions": _POSITIONS,
    "quant_noise_pq": 0,
    "decoder_output_dim": _D,
    "lr": [0.0005],
}


def _filled(words: Sequence[str], size: int) -> list[str]:
    return [*words, *(f"madeupword{number:04d}" for number in range(size - len(words)))]


def _fairseq_weights(options: Mapping[str, Any], num_source: int, num_target: int, seed: int) -> dict[str, Tensor]:
    draw = _Draw(seed)
    is_pre = options.get("encoder_normalize_before", False)
    state: dict[str, Tensor] = {}
    for stack, size in (("encoder", num_source), ("decoder", num_target)):
        state[f"{stack}.version"] = torch.tensor([3.0])
        state[f"{stack}.embed_tokens.weight"] = draw.matrix(size, _D)
        if options.get("encoder_learned_pos"):
            positions = {**_FAIRSEQ_OPTIONS, **options}[
                "max_source_positions" if stack == "encoder" else "max_target_positions"
            ]
            state[f"{stack}.embed_positions.weight"] = draw.matrix(positions + 2, _D)
        elif not options.get("no_token_positional_embeddings"):
            state[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
        norms = [
            *(["layer_norm"] if is_pre else []),
            *(["layernorm_embedding"] if "layernorm_embedding" in options else []),
        ]
        for layer in range(_LAYERS):
            path = f"layers.{layer}"
            norms += [f"{path}.self_attn_layer_norm", f"{path}.final_layer_norm"]
            attentions = ["self_attn"]
            if stack == "decoder":
                norms.append(f"{path}.encoder_attn_layer_norm")
                attentions.append("encoder_attn")
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    state.update(draw.linear(f"{stack}.{path}.{attention}.{part}", _D, _D))
            state.update(draw.linear(f"{stack}.{path}.fc1", _FFN, _D))
            state.update(draw.linear(f"{stack}.{path}.fc2", _D, _FFN))
        for norm in norms:
            state.update(draw.norm(f"{stack}.{norm}"))
    table = state["decoder.embed_tokens.weight"]
    if options.get("share_all_embeddings"):
        state["encoder.embed_tokens.weight"] = table
    is_tied = options.get("share_all_embeddings") or options.get("share_decoder_input_output_embed")
    projection = table if is_tied else draw.matrix(num_target, _D)
    state["decoder.output_projection.weight"] = projection
    last = "decoder.layer_norm" if is_pre else f"decoder.layers.{_LAYERS - 1}.final_layer_norm"
    draw.end_by_itself(state, last, projection[2])
    return state


class _Draw:
    """Random tensors, the same with each seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, *shape: int, std: float = 0.4) -> Tensor:
        return torch.randn(*shape, generator=self._generator) * std

    def linear(self, name: str, outputs: int, inputs: int) -> dict[str, Tensor]:
        return {f"{name}.weight": self.matrix(outputs, inputs), f"{name}.bias": self.matrix(outputs, std=0.1)}

    def norm(self, name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": 1 + self.matrix(_D, std=0.2), f"{name}.bias": self.matrix(_D, std=0.1)}

    def end_by_itself(self, state: dict[str, Tensor], norm: str, eos: Tensor) -> None:
        """Give EOS a head start, and all else random signs: with shared tables each token would repeat itself."""
        state[f"{norm}.weight"] *= torch.sign(self.matrix(_D))
        state[f"{norm}.bias"] = _EOS_LOGIT * eos / eos.square().sum()


@dataclasses.dataclass(frozen=True)
class Said:
    """What a library computes for one of `PAIRS`."""

    log_probs: list[float]
    """Of the tokens of the target."""
    beam: list[int]
    """The best target of a beam search without length penalty, padding and unknown tokens; EOS last."""


@torch.inference_mode()
def run_fairseq(directory: Path) -> list[Said]:
    """Return what fairseq says of a checkpoint; ImportError if it is not there."""
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
    said = []
    for source_ids, target_ids in PAIRS:
        tokens = {"src_tokens": torch.tensor([source_ids]), "src_lengths": torch.tensor([len(source_ids)])}
        inputs = torch.tensor([[target.eos(), *target_ids[:-1]]])
        scores = model.get_normalized_probs(model(**tokens, prev_output_tokens=inputs), log_probs=True)[0]
        best = generator.generate([model], {"net_input": tokens})[0][0]["tokens"].tolist()
        said.append(Said(_chosen(scores, target_ids), best))
    return said


def _chosen(scores: Tensor, target_ids: Sequence[int]) -> list[float]:
    """Return the log-probability of each token; scores [T, V]."""
    return [round(float(row[token_id]), 6) for row, token_id in zip(scores, target_ids, strict=True)]


@contextlib.contextmanager
def _hashable_dataclasses() -> Iterator[None]:
    """Let modules of fairseq and hydra be read by Python 3.11, which wants default values of fields to be hashable."""
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


@dataclasses.dataclass(frozen=True)
class System:
    """A library whose checkpoints are imported."""

    save: Callable[..., None]
    run: Callable[[Path], list[Said]]
    cases: Mapping[str, Mapping[str, Any]]


SYSTEMS: Mapping[str, System] = {"fairseq": System(save_fairseq, run_fairseq, FAIRSEQ)}


def main() -> int:
    """Write what the libraries say."""
    said: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name, system in SYSTEMS.items():
        for case, options in system.cases.items():
            with TemporaryDirectory() as directory:
                system.save(Path(directory) / "theirs", options)
                results = system.run(Path(directory) / "theirs")
            said.setdefault(name, {})[case] = [dataclasses.asdict(result) for result in results]
    EXPECTED.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
