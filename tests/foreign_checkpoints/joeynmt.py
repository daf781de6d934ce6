"""Runs of JoeyNMT."""

import importlib.metadata
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import yaml
from torch import Tensor

from tests.foreign_checkpoints.drawing import FFN, HEADS, LAYERS, NUM_SOURCE_TOKENS, NUM_TOKENS, D, Draw, filled
from tests.foreign_checkpoints.said import BEAM_SIZE, LONGEST, SHORTEST, Pairs, Said, chosen
from tests.foreign_models import pieces, trained
from tests.tiny_bundle import SENTENCES

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
        (directory / f"{side}_vocab.txt").write_text("\n".join([*filled(words, size), ""]), encoding="utf-8")
    stack = {
        "type": "transformer",
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "embeddings": {"embedding_dim": D, "scale": options.get("scale", True), "dropout": 0.0},
        "hidden_size": D,
        "ff_size": FFN,
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


def _yaml(config: Any) -> str:
    dumped: str = yaml.dump(json.loads(json.dumps(config)))  # without aliases of what is the same object
    return dumped


def _joeynmt_weights(options: Mapping[str, Any], num_source: int, num_target: int, seed: int) -> dict[str, Tensor]:
    draw, is_pre = Draw(seed), options["layer_norm"] == "pre"
    state: dict[str, Tensor] = {"trg_embed.lut.weight": draw.matrix(num_target, D)}
    is_shared = options.get("tied_embeddings")
    state["src_embed.lut.weight"] = state["trg_embed.lut.weight"] if is_shared else draw.matrix(num_source, D)
    places = torch.arange(5000)[:, None] * torch.exp(torch.arange(0, D, 2) * -(math.log(10000.0) / D))
    attentions = {"encoder": ("src_src_att",), "decoder": ("trg_trg_att", "src_trg_att")}
    norms = {"encoder": ("layer_norm",), "decoder": ("x_layer_norm", "dec_layer_norm")}
    for stack, names in attentions.items():
        state[f"{stack}.pe.pe"] = torch.stack((places.sin(), places.cos()), dim=-1).flatten(1)[None]
        for layer in range(LAYERS):
            path = f"{stack}.layers.{layer}"
            for attention in names:
                for part in ("k_layer", "v_layer", "q_layer", "output_layer"):
                    state.update(draw.linear(f"{path}.{attention}.{part}", D, D))
            state.update(draw.linear(f"{path}.feed_forward.pwff_layer.0", FFN, D))
            state.update(draw.linear(f"{path}.feed_forward.pwff_layer.3", D, FFN))
            for norm in (*norms[stack], "feed_forward.layer_norm"):
                state.update(draw.norm(f"{path}.{norm}"))
        if is_pre:
            state.update(draw.norm(f"{stack}.layer_norm"))
    projection = state["trg_embed.lut.weight"] if options.get("tied_softmax") else draw.matrix(num_target, D)
    state["decoder.output_layer.weight"] = projection
    last = "decoder.layer_norm" if is_pre else f"decoder.layers.{LAYERS - 1}.feed_forward.layer_norm"
    draw.end_by_itself(state, last, projection[3])
    return state


@torch.inference_mode()
def run_joeynmt(directory: Path, pairs: Pairs) -> list[Said]:
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
    for source_ids, target_ids in pairs:
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
        said.append(Said(chosen(torch.log_softmax(logits, dim=-1), target_ids), best[0].tolist()))
    return said
