"""Tiny checkpoints of fairseq, JoeyNMT and eole with random weights, and what those libraries compute with them.

None of them can stand beside what this project needs, so `tests/parity/originals.json` holds what they said. To make it
again, with each library where Python finds it (fairseq 0.12.2 needs omegaconf 2.0 and hydra-core 1.0; JoeyNMT 2.3.0
sacremoses and subword-nmt; eole 0.6.4 pyonmttok; of each `pip install --no-deps --target DIR` is enough):

    PYTHONPATH=proto:DIR python -m tests.foreign_checkpoints fairseq joeynmt eole
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from tests.foreign_models import pieces, trained
from tests.tiny_bundle import SENTENCES

EXPECTED = Path(__file__).parent / "parity" / "originals.json"
NUM_TOKENS, NUM_SOURCE_TOKENS = 101, 97
"""Of every vocabulary, odd; of that of sources where it is another. Words that are in no text fill them up."""
_PAIRS = (
    ((5, 17, 4, 40, 33), (9, 31, 6, 28)),
    ((60, 8), (12, 55, 7, 7, 90, 41)),
)
"""Token ids of sources and targets without EOS."""
BEAM_SIZE, SHORTEST, LONGEST = 4, 5, 24
_D, _HEADS, _FFN, _LAYERS, _POSITIONS = 16, 2, 24, 2, 64
_EOS_LOGIT = 8.0
"""Head start of EOS, so that most targets end before the limit."""
_EOLE_EOS_LOGIT = 3.0
"""The same, in the bias of the projection."""


@dataclasses.dataclass(frozen=True)
class Said:
    """What a library computes for one of `PAIRS`."""

    log_probs: list[float]
    """Of the tokens of the target."""
    beam: list[int]
    """The best target of a beam search without length penalty, padding and unknown tokens; EOS last."""


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
    "no positions, small states": {
        "no_token_positional_embeddings": True,
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "no_scale_embedding": True,
        "tables_std": 0.01,
    },
}
"""Options of a model by what is special in it, and the standard deviation of its embeddings."""


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
        state[f"{stack}.embed_tokens.weight"] = draw.matrix(size, _D, std=options.get("tables_std", 0.4))
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
    for source_ids, target_ids in SYSTEMS["fairseq"].pairs:
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


LEFT_OUT = ("▁th", "▁a")
"""Pieces that vocabularies of JoeyNMT lack, as rare ones are left out: the SentencePiece model may not use them."""
JOEYNMT: Mapping[str, Mapping[str, Any]] = {
    "post-norm, all tied": {"tied_embeddings": True, "tied_softmax": True, "layer_norm": "post"},
    "pre-norm, two vocabularies": {"tied_softmax": True, "layer_norm": "pre", "activation": "gelu", "scale": False},
    "weighted residuals, nothing tied": {"layer_norm": "post", "initializer": "xavier_normal", "activation": "swish"},
}
"""Options of a model by what is special in it."""


def save_joeynmt(directory: Path, options: Mapping[str, Any], *, seed: int = 5) -> None:
    """Write the directory of a run as JoeyNMT does when it trains: the best checkpoint is a link."""
    directory.mkdir(parents=True)
    is_shared = options.get("tied_embeddings", False)
    sizes = {"src": NUM_TOKENS if is_shared else NUM_SOURCE_TOKENS, "trg": NUM_TOKENS}
    model = trained(SENTENCES, size=70)
    (directory / "spm.model").write_bytes(model)
    for side, size in sizes.items():
        words = ["<unk>", "<pad>", "<s>", "</s>", *(piece for piece in pieces(model)[3:] if piece not in LEFT_OUT)]
        (directory / f"{side}_vocab.txt").write_text("\n".join([*_filled(words, size), ""]), encoding="utf-8")
    stack = {
        "type": "transformer",
        "num_layers": _LAYERS,
        "num_heads": _HEADS,
        "embeddings": {"embedding_dim": _D, "scale": options.get("scale", True), "dropout": 0.0},
        "hidden_size": _D,
        "ff_size": _FFN,
        "dropout": 0.1,
        "layer_norm": options["layer_norm"],
        "activation": options.get("activation", "relu"),
    }
    text = {"max_length": 100, "lowercase": False, "normalize": False, "level": "bpe", "voc_min_freq": 1}
    splitting = {"tokenizer_type": "sentencepiece", "tokenizer_cfg": {"model_file": "data/spm.model", "alpha": 0.1}}
    names = {name: options[name] for name in ("tied_embeddings", "tied_softmax", "initializer") if name in options}
    config = {
        "name": "tiny",
        "model_dir": "models/tiny",
        "data": {side: {"lang": lang, **text, **splitting} for side, lang in (("src", "en"), ("trg", "de"))},
        "testing": {"beam_size": 5, "beam_alpha": 1.0},
        "training": {"batch_size": 8, "learning_rate": 0.001},
        "model": {**names, "encoder": stack, "decoder": dict(stack)},
    }
    (directory / "config.yaml").write_text(_yaml(config), encoding="utf-8")
    weights = _joeynmt_weights(options, sizes["src"], sizes["trg"], seed)
    torch.save({"model_state": weights, "stats_state": {"steps": 7, "best_ckpt_score": 3.5}}, directory / "7.ckpt")
    (directory / "best.ckpt").symlink_to("7.ckpt")


def configure(file: Path, option: str, value: object) -> None:
    """Set an option, named by its dotted path, in a configuration in YAML or JSON."""
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    *parents, name = option.split(".")
    part = config
    for parent in parents:
        part = part.setdefault(parent, {})
    part[name] = value
    file.write_text(json.dumps(config), encoding="utf-8")


def _yaml(config: Any) -> str:
    dumped: str = yaml.dump(json.loads(json.dumps(config)))  # without aliases of what is the same object
    return dumped


def _joeynmt_weights(options: Mapping[str, Any], num_source: int, num_target: int, seed: int) -> dict[str, Tensor]:
    draw, is_pre = _Draw(seed), options["layer_norm"] == "pre"
    state: dict[str, Tensor] = {"trg_embed.lut.weight": draw.matrix(num_target, _D)}
    is_shared = options.get("tied_embeddings")
    state["src_embed.lut.weight"] = state["trg_embed.lut.weight"] if is_shared else draw.matrix(num_source, _D)
    places = torch.arange(5000)[:, None] * torch.exp(torch.arange(0, _D, 2) * -(math.log(10000.0) / _D))
    attentions = {"encoder": ("src_src_att",), "decoder": ("trg_trg_att", "src_trg_att")}
    norms = {"encoder": ("layer_norm",), "decoder": ("x_layer_norm", "dec_layer_norm")}
    for stack, names in attentions.items():
        state[f"{stack}.pe.pe"] = torch.stack((places.sin(), places.cos()), dim=-1).flatten(1)[None]
        for layer in range(_LAYERS):
            path = f"{stack}.layers.{layer}"
            for attention in names:
                for part in ("k_layer", "v_layer", "q_layer", "output_layer"):
                    state.update(draw.linear(f"{path}.{attention}.{part}", _D, _D))
            state.update(draw.linear(f"{path}.feed_forward.pwff_layer.0", _FFN, _D))
            state.update(draw.linear(f"{path}.feed_forward.pwff_layer.3", _D, _FFN))
            for norm in (*norms[stack], "feed_forward.layer_norm"):
                state.update(draw.norm(f"{path}.{norm}"))
        if is_pre:
            state.update(draw.norm(f"{stack}.layer_norm"))
    projection = state["trg_embed.lut.weight"] if options.get("tied_softmax") else draw.matrix(num_target, _D)
    state["decoder.output_layer.weight"] = projection
    last = "decoder.layer_norm" if is_pre else f"decoder.layers.{_LAYERS - 1}.feed_forward.layer_norm"
    draw.end_by_itself(state, last, projection[3])
    return state


@torch.inference_mode()
def run_joeynmt(directory: Path) -> list[Said]:
    """Return what JoeyNMT says of a checkpoint; ImportError if it is not there."""
    boards = ModuleType("torch.utils.tensorboard")
    boards.SummaryWriter = None  # type: ignore[attr-defined]
    sys.modules.setdefault("torch.utils.tensorboard", boards)  # which nothing needs that is done here
    sys.modules.setdefault("importlib_metadata", importlib.metadata)
    from joeynmt.config import _check_special_symbols  # noqa: PLC0415
    from joeynmt.model import build_model  # noqa: PLC0415
    from joeynmt.search import beam_search  # noqa: PLC0415
    from joeynmt.vocabulary import Vocabulary  # noqa: PLC0415

    special = SimpleNamespace(**_check_special_symbols({}))
    source, target = (
        Vocabulary((directory / f"{side}_vocab.txt").read_text(encoding="utf-8").splitlines(), special)
        for side in ("src", "trg")
    )
    config = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    model = build_model(config["model"], source, target).eval()
    model.load_state_dict(torch.load(directory / "best.ckpt", weights_only=True)["model_state"])
    said = []
    for source_ids, target_ids in SYSTEMS["joeynmt"].pairs:
        tokens, mask = torch.tensor([source_ids]), torch.ones(1, 1, len(source_ids), dtype=torch.bool)
        memory, _, _, _ = model(
            return_type="encode", src=tokens, src_length=torch.tensor([len(source_ids)]), src_mask=mask
        )
        inputs = torch.tensor([[target.bos_index, *target_ids[:-1]]])
        everything = {"encoder_output": memory, "encoder_hidden": None, "src_mask": mask}
        told = {"trg_input": inputs, "unroll_steps": None, "decoder_hidden": None, "trg_mask": mask.new_ones(1, 1, 1)}
        logits = model(return_type="decode", **everything, **told)[0][0]
        rules = {"max_output_length": LONGEST, "alpha": -1, "min_output_length": SHORTEST, "generate_unk": False}
        best, _, _ = beam_search(model=model, beam_size=BEAM_SIZE, **everything, **rules)
        said.append(Said(_chosen(torch.log_softmax(logits, dim=-1), target_ids), best[0].tolist()))
    return said


_EOLE_BIASES = {"add_qkvbias": True, "add_final_linear_bias": True, "add_ffnbias": True}
_EOLE_ROTARY = {"position_encoding_type": "Rotary"}
EOLE: Mapping[str, Mapping[str, Any]] = {
    "sinusoids, all shared": {"share_embeddings": True, "share_decoder_embeddings": True, **_EOLE_BIASES},
    "rotary positions in pairs, grouped heads, gate": {
        "embeddings": _EOLE_ROTARY,
        "rope_config": {"rotary_interleave": True},
        "heads": 4,
        "heads_kv": 2,
        "head_dim": 8,
        "layer_norm": "rms",
        "norm_eps": 1e-2,
        "mlp_activation_fn": "gated-silu",
        "share_decoder_embeddings": True,
    },
    "rotary positions in halves": {
        "embeddings": {**_EOLE_ROTARY, "normalize": True},
        "rope_config": {"rotary_interleave": False},
        "mlp_activation_fn": "silu",
        **_EOLE_BIASES,
        "add_key_bias": False,
    },
    "learned positions from 2, scaled": {
        "embeddings": {
            "position_encoding_type": "Learned",
            "n_positions": _POSITIONS,
            "position_shift": 2,
            "normalize": True,
        },
        "mlp_activation_fn": "gelu",
    },
    "all sines before all cosines": {"embeddings": {"position_encoding_type": "SinusoidalConcat"}, **_EOLE_BIASES},
    "no positions": {"embeddings": {"position_encoding_type": None}, "share_embeddings": True},
}
"""Options of a model by what is special in it."""


def save_eole(directory: Path, options: Mapping[str, Any], *, seed: int = 7) -> None:
    """Write the directory of a model as eole does when it trains, in two parts: all but the configuration are links."""
    step = directory / "step_10"
    step.mkdir(parents=True)
    sizes = {"src": NUM_TOKENS if options.get("share_embeddings") else NUM_SOURCE_TOKENS, "tgt": NUM_TOKENS}
    model = trained(SENTENCES, size=70)
    (step / "spm.model").write_bytes(model)
    words = ["<unk>", "<blank>", "<s>", "</s>", *pieces(model)[3:]]
    special = {"unk_token": "<unk>", "pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>"}
    lists = {side: _filled(words, size) for side, size in sizes.items()}
    vocab = {**lists, "decoder_start_token": "<s>", "specials": special}
    (step / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    weights = _eole_weights(options, sizes["src"], sizes["tgt"], seed)
    half = len(weights) // 2
    for number, names in enumerate((list(weights)[:half], list(weights)[half:])):
        save_file({name: weights[name].contiguous() for name in names}, step / f"model.{number:02}.safetensors")
    for path in sorted(step.iterdir()):
        (directory / path.name).symlink_to(path.relative_to(directory))
    (directory / "config.json").write_text(json.dumps(eole_config(options)), encoding="utf-8")


def eole_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config.json` with these options of the model."""
    sizes = {"layers": _LAYERS, "heads": _HEADS, "hidden_size": _D, "transformer_ff": _FFN}
    embeddings = {"word_vec_size": _D, **options.get("embeddings", {})}
    model = {"architecture": "transformer", **sizes, **options, "embeddings": embeddings}
    files = {f"{side}_subword_model": "${MODEL_PATH}/spm.model" for side in ("src", "tgt")}
    return {
        "seed": 1234,
        "share_vocab": bool(options.get("share_embeddings")),
        "src_vocab": "data/src.vocab",
        "tgt_vocab": "data/tgt.vocab",
        "transforms": ["sentencepiece", "filtertoolong"],
        "transforms_configs": {
            "sentencepiece": {**files, "src_subword_nbest": 1},
            "filtertoolong": {"src_seq_length": 96},
        },
        "training": {"dropout": [0.1], "batch_size": 8, "compute_dtype": "torch.float32"},
        "model": {
            **model,
            "encoder": {"encoder_type": "transformer", "layers": _LAYERS, "src_word_vec_size": _D, "n_positions": None},
            "decoder": {"decoder_type": "transformer", "layers": _LAYERS, "tgt_word_vec_size": _D},
        },
        "data": {"corpus_1": {"path_src": "train.en", "path_tgt": "train.de", "transforms": ["sentencepiece"]}},
    }


def _eole_weights(options: Mapping[str, Any], num_source: int, num_target: int, seed: int) -> dict[str, Tensor]:
    draw = _Draw(seed)
    kind = options.get("embeddings", {}).get("position_encoding_type", "SinusoidalInterleaved")
    state: dict[str, Tensor] = {}
    for stack, side, size in (("encoder", "src", num_source), ("decoder", "tgt", num_target)):
        state[f"{side}_emb.embeddings.weight"] = draw.matrix(size, _D)
        if kind == "Learned":
            state[f"{side}_emb.pe.weight"] = draw.matrix(_POSITIONS, _D)
        elif str(kind).startswith("Sinusoidal"):
            state[f"{side}_emb.pe.pe"] = _eole_sinusoids(is_in_turn=kind == "SinusoidalInterleaved")
        for layer in range(_LAYERS):
            state |= _eole_layer(draw, options, f"{stack}.transformer_layers.{layer}")
        state |= _eole_norm(draw, options, f"{stack}.layer_norm")
    table = state["src_emb.embeddings.weight" if options.get("share_embeddings") else "tgt_emb.embeddings.weight"]
    projection = table if options.get("share_decoder_embeddings") else draw.matrix(num_target, _D)
    state["decoder.layer_norm.weight"] *= torch.sign(draw.matrix(_D))  # as in `end_by_itself`
    state["generator.weight"], state["generator.bias"] = projection, draw.matrix(num_target, std=0.1)
    state["generator.bias"][3] += _EOLE_EOS_LOGIT
    state["generator.bias"][1] = -100.0  # of padding, which eole may choose otherwise
    copies = {"share_embeddings": "tgt_emb.embeddings.weight", "share_decoder_embeddings": "generator.weight"}
    left_out = [name for option, name in copies.items() if options.get(option)]  # as eole does
    return {name: tensor for name, tensor in state.items() if name not in left_out}


def _eole_layer(draw: _Draw, options: Mapping[str, Any], path: str) -> dict[str, Tensor]:
    heads = options.get("heads", _HEADS)
    head_dim = options.get("head_dim", _D // heads)
    kv_size, size = options.get("heads_kv", heads) * head_dim, heads * head_dim
    qkv_bias, ffn_bias = options.get("add_qkvbias", False), options.get("add_ffnbias", False)
    products: dict[str, tuple[int, int, bool]] = {"mlp.gate_up_proj": (_FFN, _D, ffn_bias)}
    if options.get("mlp_activation_fn") == "gated-silu":
        products["mlp.up_proj"] = (_FFN, _D, ffn_bias)
    products["mlp.down_proj"] = (_D, _FFN, ffn_bias)
    norms = ["input_layernorm", "post_attention_layernorm"]
    state = {}
    if path.startswith("decoder"):
        norms.append("precontext_layernorm")
        state[f"{path}.layer_scalar"] = torch.ones(1)
    for attention in ("self_attn", "context_attn")[: len(norms) - 1]:
        products[f"{attention}.linear_query"] = (size, _D, qkv_bias)
        products[f"{attention}.linear_keys"] = (kv_size, _D, options.get("add_key_bias", qkv_bias))
        products[f"{attention}.linear_values"] = (kv_size, _D, qkv_bias)
        products[f"{attention}.final_linear"] = (_D, size, options.get("add_final_linear_bias", False))
    for name, (outputs, inputs, has_bias) in products.items():
        drawn = draw.linear(f"{path}.{name}", outputs, inputs)
        state |= drawn if has_bias else {f"{path}.{name}.weight": drawn[f"{path}.{name}.weight"]}
    for name in norms:
        state |= _eole_norm(draw, options, f"{path}.{name}")
    return state


def _eole_norm(draw: _Draw, options: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    drawn = draw.norm(name)
    return {f"{name}.weight": drawn[f"{name}.weight"]} if options.get("layer_norm") == "rms" else drawn


def _eole_sinusoids(*, is_in_turn: bool) -> Tensor:
    """Return the table [5000, 1, D] that eole stores."""
    steps = torch.arange(_D // 2) / (_D // 2 if is_in_turn else _D // 2 - 1)
    angles = torch.arange(5000)[:, None] * torch.exp(steps * -math.log(10000.0))
    parts = torch.stack((angles.sin(), angles.cos()), dim=-1 if is_in_turn else 1)
    return parts.flatten(1)[:, None]


@torch.inference_mode()
def run_eole(directory: Path) -> list[Said]:
    """Return what eole says of a model; ImportError if it is not there."""
    from eole.config.run import PredictConfig  # noqa: PLC0415
    from eole.predict import build_predictor  # noqa: PLC0415

    lengths = {"min_length": SHORTEST, "max_length": LONGEST}
    rules = {"beam_size": BEAM_SIZE, "length_penalty": "none", "ban_unk_token": True, "max_length_ratio": 0, **lengths}
    config = PredictConfig(model_path=[str(directory)], src="", compute_dtype="fp32", **rules)
    predictor = build_predictor(config)
    said = []
    for source_ids, target_ids in SYSTEMS["eole"].pairs:
        source, length = torch.tensor([source_ids]), torch.tensor([len(source_ids)])
        scores = predictor.model.compute_log_probs(source, torch.tensor([[2, *target_ids]]), length)["log_probs"][0]
        best = predictor.predict_batch({"src": source, "srclen": length}, attn_debug=False)
        said.append(Said(_chosen(scores, target_ids), best["predictions"][0][0].tolist()))
    return said


@dataclasses.dataclass(frozen=True)
class System:
    """A library whose checkpoints are imported."""

    save: Callable[..., None]
    run: Callable[[Path], list[Said]]
    cases: Mapping[str, Mapping[str, Any]]
    eos_id: int
    ends_sources: bool = True

    @property
    def pairs(self) -> list[tuple[list[int], list[int]]]:
        """Token ids of sources and targets, EOS last."""
        suffix = [self.eos_id] if self.ends_sources else []
        return [([*source, *suffix], [*target, self.eos_id]) for source, target in _PAIRS]


SYSTEMS: Mapping[str, System] = {
    "fairseq": System(save_fairseq, run_fairseq, FAIRSEQ, eos_id=2),
    "joeynmt": System(save_joeynmt, run_joeynmt, JOEYNMT, eos_id=3),
    "eole": System(save_eole, run_eole, EOLE, eos_id=3, ends_sources=False),
}


def main(names: Sequence[str]) -> int:
    """Write what libraries say in place of what is stored of them."""
    said: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    for name in names:
        system = SYSTEMS[name]
        said[name] = {}
        for case, options in system.cases.items():
            with TemporaryDirectory() as directory:
                system.save(Path(directory) / "theirs", options)
                results = system.run(Path(directory) / "theirs")
            said[name][case] = [dataclasses.asdict(result) for result in results]
    EXPECTED.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
