"""Model directories of Marian."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.foreign_checkpoints.building import HEADS, LAYERS, D
from tests.foreign_models import pieces, trained
from tests.tiny_bundle import SENTENCES

_FFN = 24
_OPTIONS: Mapping[str, Any] = {
    "type": "transformer",
    "dim-emb": D,
    "transformer-dim-ffn": _FFN,
    "transformer-heads": HEADS,
    "enc-depth": LAYERS,
    "dec-depth": LAYERS,
    "transformer-decoder-autoreg": "self-attention",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-ffn-activation": "swish",
    "transformer-ffn-depth": 2,
    "transformer-no-projection": False,
    "transformer-guided-alignment-layer": "last",
    "transformer-tied-layers": [],
    "tied-embeddings": False,
    "tied-embeddings-all": True,
    "tied-embeddings-src": False,
    "output-omit-bias": False,
    "dim-rnn": 1024,
    "version": "v1.12.14 2d067af 2024-02-16 11:44:13 -0500",
}
_EOS_LOGIT = 1.5


def save_marian_directory(directory: Path, options: Mapping[str, Any] | None = None, *, seed: int = 4) -> Path:
    """Write a random model like an OPUS-MT archive, and return the path of the model.

    A model without `tied-embeddings-all` and `tied-embeddings-src` has a vocabulary per side.
    """
    directory.mkdir(parents=True)
    options = {**_OPTIONS, **(options or {})}
    is_shared = options["tied-embeddings-all"] or options["tied-embeddings-src"]
    models = {"source": trained(SENTENCES[:4], size=60), "target": trained(SENTENCES[4:], size=70)}
    words = [pieces(model)[3:] for model in models.values()]
    sides = [sorted({*words[0], *words[1]})] if is_shared else words
    vocabularies = [["</s>", "<unk>", *side, "no", "~", "1e3"] for side in sides]
    for name, model in models.items():
        (directory / f"{name}.spm").write_bytes(model)
    names = [f"vocab.{index}.yml" for index in range(len(vocabularies))]
    for name, vocabulary in zip(names, vocabularies, strict=True):
        lines = sorted(f"{_quoted(token)}: {token_id}\n" for token_id, token in enumerate(vocabulary))
        (directory / name).write_text("".join(lines), encoding="utf-8")
    decoder = {"models": ["model.npz"], "vocabs": [names[0], names[-1]], "beam-size": 6, "relative-paths": True}
    (directory / "decoder.yml").write_text(yaml.safe_dump(decoder), encoding="utf-8")
    sizes = [len(vocabularies[0]), len(vocabularies[-1])]
    config = {"dim-vocabs": sizes, **options}
    save_npz(directory / "model.npz", config, _Weights(config, seed).arrays)
    return directory / "model.npz"


def save_npz(path: Path, config: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> None:
    """Write a model as Marian's training does."""
    np.savez(path, **{**weights, "special:model.yml": _config_item(config)})  # type: ignore[arg-type]


def save_binary(path: Path, config: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> None:
    """Write a model in float32 as `marian-conv` does."""
    arrays = {**{name: weights[name] for name in sorted(weights)}, "special:model.yml": _config_item(config)}
    contents = {name: array.tobytes() + bytes(-array.nbytes % 256) for name, array in arrays.items()}
    kinds = {name: 0x404 if array.dtype == np.float32 else 0x101 for name, array in arrays.items()}
    head = struct.pack("<QQ", 1, len(arrays))
    for name, array in arrays.items():
        head += struct.pack("<4Q", len(name) + 1, kinds[name], array.ndim, len(contents[name]))
    head += b"".join(name.encode() + b"\0" for name in arrays)
    head += b"".join(struct.pack(f"<{array.ndim}i", *array.shape) for array in arrays.values())
    gap = 256 - (len(head) + 8) % 256
    path.write_bytes(head + struct.pack("<Q", gap) + bytes(gap) + b"".join(contents.values()))


def load_npz(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the configuration and the weights of a model that these functions wrote."""
    with np.load(path) as archive:
        weights = {name: archive[name] for name in archive.files}
    return yaml.safe_load(weights.pop("special:model.yml").tobytes().rstrip(b"\0")), weights


def _config_item(config: Mapping[str, Any]) -> np.ndarray:
    return np.frombuffer(yaml.safe_dump(dict(config)).encode() + b"\0", np.int8)


def _quoted(token: str) -> str:
    return json.dumps(token, ensure_ascii=False) if not token.isalnum() or token in ("no", "1e3") else token


class _Weights:
    """Random parameters of a configuration."""

    def __init__(self, config: Mapping[str, Any], seed: int) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._config, self._random = config, np.random.default_rng(seed)
        self._tables()
        for stack, depth in (("encoder", config["enc-depth"]), ("decoder", config["dec-depth"])):
            tied = config["transformer-tied-layers"] if stack == "decoder" else []
            for layer in set(tied) or range(1, depth + 1):
                self._layer(stack, layer)
            if "n" in config["transformer-postprocess-emb"]:
                self._norm(f"{stack}_emb", "_pre")
            if "n" in config["transformer-postprocess-top"]:
                self._norm(f"{stack}_top", "")

    def _tables(self) -> None:
        config, (num_sources, num_targets) = self._config, self._config["dim-vocabs"]
        if config["tied-embeddings-all"] or config["tied-embeddings-src"]:
            self._draw("Wemb", num_targets, D)
        else:
            self._draw("encoder_Wemb", num_sources, D)
            self._draw("decoder_Wemb", num_targets, D)
        if not (config["tied-embeddings-all"] or config["tied-embeddings"]):
            self._draw("decoder_ff_logit_out_Wt", num_targets, D)
        if not config["output-omit-bias"]:
            self._draw("decoder_ff_logit_out_b", 1, num_targets, std=0.1)
            self.arrays["decoder_ff_logit_out_b"][0, 0] += _EOS_LOGIT

    def _layer(self, stack: str, layer: int) -> None:
        prefix, suffix = f"{stack}_l{layer}", "_pre" if "n" in self._config["transformer-preprocess"] else ""
        is_recurrent = stack == "decoder" and self._config["transformer-decoder-autoreg"] == "rnn"
        if is_recurrent:
            self._draw(f"{prefix}_rnn_W", D, D)
            self._products(f"{prefix}_rnn", {"f": (D, D)})
            self._norm(f"{prefix}_rnn" if suffix else f"{prefix}_rnn_ffn", suffix)
        for block in (*(() if is_recurrent else ("self",)), *(("context",) if stack == "decoder" else ())):
            self._products(f"{prefix}_{block}", dict.fromkeys("qkvo", (D, D)))
            self._norm(f"{prefix}_{block}_Wo", suffix)
        self._products(f"{prefix}_ffn", {"1": (D, _FFN), "2": (_FFN, D)})
        self._norm(f"{prefix}_ffn_ffn", suffix)

    def _products(self, prefix: str, shapes: Mapping[str, tuple[int, int]]) -> None:
        for letter, shape in shapes.items():
            self._draw(f"{prefix}_W{letter}", *shape)
            self._draw(f"{prefix}_b{letter}", 1, shape[1], std=0.1)

    def _norm(self, name: str, suffix: str) -> None:
        self._draw(f"{name}_ln_scale{suffix}", 1, D, std=0.2, mean=1.0)
        self._draw(f"{name}_ln_bias{suffix}", 1, D, std=0.1)

    def _draw(self, name: str, *shape: int, std: float = 0.4, mean: float = 0.0) -> None:
        self.arrays[name] = (mean + std * self._random.standard_normal(shape)).astype(np.float32)
