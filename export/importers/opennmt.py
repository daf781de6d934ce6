"""Reads Transformers that OpenNMT-py trained to translate, version 3 on, from their checkpoint.

What the options mean is read from the code of OpenNMT-py 3.5. Its network is that of CTranslate2, which began as its
engine: tensors get the names that they have there, and the same code takes them over.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from export.errors import ImportFormatError
from export.importers.ctranslate2 import Network, Variables
from export.importers.files import ForeignConfig, fields_of, float_tensors, read_checkpoint
from export.importers.huggingface_text import Text
from export.importers.portable import MAX_TOKENS, ImportedModel
from export.importers.vocabulary_text import SentencePieceFiles, Vocabularies
from service.bundle.architecture import Limits

_ACTIVATIONS: Final = {"relu": 0, "gelu": 3, "silu": 2}
"""By `pos_ffn_activation_fn`, as CTranslate2 numbers them; silu has a gate."""

_REQUIRED: Final[Mapping[str, tuple[object, ...]]] = {
    "model_task": ("seq2seq",),
    "model_type": ("text",),
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "position_encoding": (True,),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat"),
    "max_relative_positions": (0,),
    "relative_positions_buckets": (0,),
    "parallel_residual": (False,),
    "shared_layer_norm": (False,),
    "copy_attn": (False,),
    "coverage_attn": (False,),
    "generator_function": ("softmax",),
    "sliding_window": (0,),
    "num_experts": (0,),
    "layer_norm": ("standard", "rms"),
    "quant_layers": ([],),
    "quant_type": ("",),
    "lora_layers": ([],),
    "parallel_mode": ("data_parallel",),
}
"""Options that make another network, and the values with which they make this one. The hundreds of others that a
checkpoint remembers are about training, or show in the tensors."""

_UNK: Final = "<unk>"
_EOS: Final = "</s>"
_BOS: Final = "<s>"

_LAYER: Final = {
    "encoder": ("transformer", {"self_attention": ("self_attn", "layer_norm")}),
    "decoder": (
        "transformer_layers",
        {"self_attention": ("self_attn", "layer_norm_1"), "attention": ("context_attn", "layer_norm_2")},
    ),
}
"""Name of the layers of each stack; theirs of attention and the normalisation before it, by those of CTranslate2."""


def read_opennmt(path: Path, *, source_spm: Path | None = None, target_spm: Path | None = None) -> ImportedModel:
    """Read a checkpoint (`.pt`), of which nothing but tensors and plain values is loaded.

    Args:
        path: the checkpoint.
        source_spm: SentencePiece model of sources; None: `source.spm`, or the only one, beside the checkpoint.
        target_spm: the same of targets.

    Raises:
        ImportFormatError: naming what is missing or cannot be imported.
    """
    content = read_checkpoint(path)
    options = fields_of(content.get("opt"))
    if options is None:
        raise ImportFormatError(f"{path} has no options (opt): not a checkpoint of OpenNMT-py")
    settings = ForeignConfig(path, options)
    for key, values in _REQUIRED.items():
        settings.require(key, *values)
    lists, start = _read_vocabularies(content.get("vocab"), path)
    vocabularies = Vocabularies.fitted(*lists, eos=_EOS, unk=_UNK, start=start, origin=path)
    spm = SentencePieceFiles.find(path.parent, source_spm, target_spm)
    spm.check((vocabularies.source, vocabularies.target))
    models = spm.read()
    epsilon = settings.take("norm_eps", float, default=1e-6)
    network = Network(Variables(_variables(content, settings, path), path), vocabularies, epsilon)
    most = min(network.num_positions, MAX_TOKENS)
    return ImportedModel(
        config=network.config(),
        limits=Limits(max_source_tokens=most, max_target_tokens=most),
        weights=network.weights,
        tokenizer=Text(
            model=models[1],
            source_model=None if models[0] == models[1] else models[0],
            pieces=vocabularies.target,
            source_pieces=None if vocabularies.source == vocabularies.target else vocabularies.source,
            source_suffix=(),
        ).files(),
    )


def _read_vocabularies(content: object, path: Path) -> tuple[tuple[list[str], list[str]], str]:
    """Return the tokens of both sides and the one that decoding begins with."""
    vocab = content if isinstance(content, dict) else {}
    lists = [vocab.get(side) for side in ("src", "tgt")]
    start = vocab.get("decoder_start_token", _BOS)
    source, target = lists
    if not isinstance(source, list) or not isinstance(target, list) or not isinstance(start, str):
        raise ImportFormatError(f"{path}: vocab holds no lists of tokens: a checkpoint of OpenNMT-py before version 3")
    if vocab.get("src_feats"):
        raise ImportFormatError(f"{path}: vocab has src_feats: several embeddings of a source token cannot be served")
    return ([str(token) for token in source], [str(token) for token in target]), start


class _Tensors:
    """The tensors of a checkpoint, each to be used once."""

    def __init__(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self._left = dict(tensors)
        self._path = path

    def take(self, name: str) -> Tensor:
        """Return a tensor; ImportFormatError if it is missing."""
        if name not in self._left:
            raise ImportFormatError(f"{self._path}: there is no tensor {name}")
        return self._left.pop(name)

    def linear(self, *names: str) -> dict[str, Tensor]:
        """Return the weights of products of the same input as one, and their biases if they have any."""
        parts = {"weight": torch.cat([self.take(f"{name}.weight") for name in names])}
        if f"{names[0]}.bias" in self._left:
            parts["bias"] = torch.cat([self.take(f"{name}.bias") for name in names])
        return parts

    def norm(self, name: str) -> dict[str, Tensor]:
        """Return a normalisation, by the names of CTranslate2."""
        parts = {"gamma": self.take(f"{name}.weight")}
        return {**parts, **({"beta": self.take(f"{name}.bias")} if f"{name}.bias" in self._left else {})}

    def has(self, name: str) -> bool:
        """Return whether a tensor is left."""
        return name in self._left

    def finish(self) -> None:
        """Raise ImportFormatError, naming the first tensor that was not read."""
        for name in sorted(self._left):
            raise ImportFormatError(f"{self._path}: nothing is known of tensor {name}")


def _variables(content: Mapping[str, Any], settings: ForeignConfig, path: Path) -> dict[str, Tensor]:
    """Return the network by the names that CTranslate2 has for its parts."""
    model, generator = (float_tensors(content.get(part) or {}, path) for part in ("model", "generator"))
    named = {f"generator.{name.removeprefix('0.')}": tensor for name, tensor in generator.items()}
    tensors = _Tensors({**model, **named}, path)
    activation = settings.take("pos_ffn_activation_fn", str, default="relu")
    if activation not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ImportFormatError(f"{path}: pos_ffn_activation_fn is {activation!r}: expected {known}")
    num_heads, num_kv_heads = settings.take("heads", int, default=8), settings.take("num_kv", int, default=0)
    found: dict[str, Tensor] = {}

    def put(name: str, parts: Mapping[str, Tensor]) -> None:
        found.update({f"{name}/{part}": tensor for part, tensor in parts.items()})

    for stack, short, embeddings in (("encoder", "enc", "embeddings_0"), ("decoder", "dec", "embeddings")):
        put(stack, {"num_heads": torch.tensor(num_heads), "activation": torch.tensor(_ACTIVATIONS[activation])})
        theirs = f"{stack}.embeddings.make_embedding"
        put(f"{stack}/{embeddings}", {"weight": tensors.take(f"{theirs}.emb_luts.0.weight")})
        put(f"{stack}/position_encodings", {"encodings": tensors.take(f"{theirs}.pe.pe").flatten(0, 1)})
        put(f"{stack}/layer_norm", tensors.norm(f"{stack}.layer_norm"))
        layers, blocks = _LAYER[stack]
        for layer in range(settings.take(f"{short}_layers", int)):
            ours, theirs = f"{stack}/layer_{layer}", f"{stack}.{layers}.{layer}"
            for block, (attention, norm) in blocks.items():
                put(f"{ours}/{block}/layer_norm", tensors.norm(f"{theirs}.{norm}"))
                if num_kv_heads:
                    put(f"{ours}/{block}", {"num_heads_kv": torch.tensor(num_kv_heads)})
                for index, names in enumerate(_fused(block)):
                    linear = tensors.linear(*(f"{theirs}.{attention}.{name}" for name in names))
                    put(f"{ours}/{block}/linear_{index}", linear)
            put(f"{ours}/ffn/layer_norm", tensors.norm(f"{theirs}.feed_forward.layer_norm"))
            for name, stored in {"linear_0": "w_1", "linear_1": "w_2", "linear_0_noact": "w_3"}.items():
                if stored != "w_3" or tensors.has(f"{theirs}.feed_forward.w_3.weight"):
                    put(f"{ours}/ffn/{name}", tensors.linear(f"{theirs}.feed_forward.{stored}"))
    put("decoder/projection", tensors.linear("generator"))
    tensors.finish()
    return found


def _fused(block: str) -> Sequence[Sequence[str]]:
    """Return the products of an attention block that CTranslate2 has as one, in its order."""
    query, others = ["linear_query"], ["linear_keys", "linear_values"]
    return [[*query, *others], ["final_linear"]] if block == "self_attention" else [query, others, ["final_linear"]]
