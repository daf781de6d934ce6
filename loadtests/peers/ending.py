"""Transformer-base with random weights that ends its targets by itself, after about as many tokens as the source has.

Without that, every target would be as long as its limit, and systems that translate a batch at once would be compared
on the one load that suits them: sentences that all end in the same step. Limits that differ from request to request
would be no way out, as those systems put only requests with the same limits into one batch.

Two dimensions of the residual stream are set apart, so that random weights neither read nor write them:

- of the encoder's, one keeps the position encoding sin(i / 100). A head of the last cross-attention looks at all source
  tokens alike and so finds the mean of it, which grows with the length of the source;
- of the decoder's, one keeps sin(p / 104) of the token's own position, from which that head takes a multiple of the
  mean. EOS is embedded along this dimension: its logit rises by several units a token and crosses all others where the
  target has the length that is wanted.

The weights have the shapes and the cost of any others.
"""

from typing import Final

import torch
from torch import Tensor, nn

from export.model.transformer import Transformer

_WIDTH: Final = 512
_SOURCE_DIMENSION: Final = 256
"""Holds sin(i / 100) in position encodings of this width."""
_END_DIMENSION: Final = 258
"""Holds sin(p / 104) likewise."""
_GAIN: Final = 20.0
"""Of the end dimension in what is projected to the vocabulary."""
_EOS_WEIGHT: Final = 40.0
"""Of the end dimension in the embedding of EOS: 40 * 20 / 104 makes 8 units of the logit a token."""
_PROBE_LENGTHS: Final = (6, 10, 16, 24, 32, 44)
_NUM_PROBES: Final = 4
_FIRST_ORDINARY_ID: Final = 4


def end_by_itself(model: Transformer, *, ratio: float = 1.1) -> None:
    """Change the weights of a post-norm model in place.

    Args:
        model: random; of width 512.
        ratio: target tokens by source tokens.

    Raises:
        ValueError: if it has another width, or normalises before its sublayers.
    """
    if model.config.d_model != _WIDTH or model.config.norm != "post":
        raise ValueError(f"{model.config.norm}-norm of width {model.config.d_model}: expected post-norm of {_WIDTH}")
    with torch.no_grad():
        _set_apart(model)
        _keep_apart(model)
        _compare(model, ratio)


def _set_apart(model: Transformer) -> None:
    """Let nothing read or write the two dimensions."""
    apart = [_SOURCE_DIMENSION, _END_DIMENSION]
    width = model.config.d_model
    model.embedding.weight[:, apart] = 0.0
    model.embedding.weight[model.config.eos_id] = 0.0
    model.embedding.weight[model.config.eos_id, _END_DIMENSION] = _EOS_WEIGHT
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        if module.in_features == width:
            module.weight[:, apart] = 0.0
        if name.endswith((".output", ".outer")):
            module.weight[apart] = 0.0


def _keep_apart(model: Transformer) -> None:
    """Let each normalisation give the two dimensions back as it got them: scale and bias there undo what is usual."""
    apart = [_SOURCE_DIMENSION, _END_DIMENSION]

    def adapt(norm: nn.LayerNorm, inputs: tuple[Tensor, ...]) -> None:
        norm.weight[apart] = inputs[0].std(dim=-1).median()
        norm.bias[apart] = inputs[0].mean(dim=-1).median()

    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    handles = [norm.register_forward_pre_hook(adapt) for norm in norms]
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(
        _FIRST_ORDINARY_ID, model.config.vocabulary_size, (_NUM_PROBES, max(_PROBE_LENGTHS)), generator=generator
    )
    mask = torch.ones_like(ids, dtype=torch.bool)
    model.decode(ids, model.encode(ids, mask), mask)
    for handle in handles:
        handle.remove()


def _compare(model: Transformer, ratio: float) -> None:
    """Have the first head of the last cross-attention take what the source says from the position, and amplify."""
    last = model.get_submodule(f"decoder.layers.{model.config.num_decoder_layers - 1}")
    attention, head = last.get_submodule("cross_attention"), slice(0, model.config.head_size)
    for name in ("query", "key", "value"):
        attention.get_submodule(name).get_parameter("weight")[head] = 0.0
    attention.get_submodule("value").get_parameter("weight")[0, _SOURCE_DIMENSION] = 1.0
    norm, output = last.get_submodule("feed_forward_norm"), attention.get_submodule("output").get_parameter("weight")
    for part in norm.parameters():
        part[_END_DIMENSION] *= _GAIN
    without = _eos_logits(model, ratio)
    output[_END_DIMENSION, 0] = -1.0
    taken = _eos_logits(model, ratio) - without
    unknown = torch.stack((taken, torch.ones_like(taken)), dim=1)
    share, offset = torch.linalg.lstsq(unknown, -without[:, None]).solution[:, 0]  # so that all of them are near 0
    output[_END_DIMENSION, 0] = -share
    norm.get_parameter("bias")[_END_DIMENSION] += offset / _EOS_WEIGHT


def _eos_logits(model: Transformer, ratio: float) -> Tensor:
    """Return the logit of EOS where targets should end, the mean of some for each of `_PROBE_LENGTHS`."""
    generator = torch.Generator().manual_seed(2)
    logits = []
    for length in _PROBE_LENGTHS:
        end = round(ratio * length)
        ids = torch.randint(
            _FIRST_ORDINARY_ID, model.config.vocabulary_size, (_NUM_PROBES, length + end), generator=generator
        )
        ids[:, length - 1] = model.config.eos_id
        ids[:, length] = model.config.bos_id
        source, mask = ids[:, :length], torch.ones(_NUM_PROBES, length, dtype=torch.bool)
        logits.append(
            model.decode(ids[:, length:], model.encode(source, mask), mask)[:, -1, model.config.eos_id].mean()
        )
    return torch.stack(logits)
