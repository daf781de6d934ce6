"""Variables of a CTranslate2 model by name, such as `encoder/layer_0/ffn/linear_0/weight`."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.ctranslate2.binary import LAST_REVISION

# unsupported features, by the names of their variables
_REASONS: Final = {
    r"relative_attention": "a relative position bias as in T5",
    r"relative": "relative positions",
    r"rotary": "rotary positions of parts of heads, with a base other than 10000, or scaled",
    r"alibi": "attention with linear biases",
    r"embeddings_[1-9]": "several embeddings of a source token",
    r"project_(in|out)": "embeddings of another width",
    r"weight_zero": "AWQ quantization",
    r"/(q|k|v)_norm": "normalised queries, keys or values",
    r"(shared|input|post_attention|pre_feedforward|post_feedforward)_layer_norm": "other normalisations in a layer",
    r"sliding_window": "attention within a window",
    r"softcapping": "capped logits",
}
# attributes that revisions before 5 store once for the model
_OF_BOTH_STACKS: Final = ("num_heads", "pre_norm", "activation", "embeddings_merge")
_GLOBAL_INT16_SCALE: Final = 1000.0  # of 16-bit weights stored without a scale


class Variables:
    """The variables of a model; each must be read once."""

    def __init__(self, tensors: Mapping[str, Tensor], path: Path, *, revision: int = LAST_REVISION) -> None:
        """Rename variables of older revisions; `path` is for errors."""
        self.path = path
        self.default_num_heads = 8  # if the model does not store it
        self._unread = dict(tensors)
        self._floats: dict[int, Tensor] = {}
        for name in _OF_BOTH_STACKS:
            if revision < 5 and name in self._unread:
                stored = self._unread.pop(name)
                for stack in ("encoder", "decoder"):
                    self._unread.setdefault(f"{stack}/{name}", stored)
        if revision < 5:
            for name in ("alignment_layer", "alignment_heads", "layernorm_embedding"):
                self._unread.pop(name, None)
            if self.attribute("with_relative_position", 0):
                raise ImportFormatError(f"{path}: with_relative_position: relative positions are not supported")
        for name in [name for name in self._unread if name.startswith("encoder/embeddings/")]:
            self._unread[name.replace("/embeddings/", "/embeddings_0/")] = self._unread.pop(name)

    def has(self, name: str) -> bool:
        """Return whether a variable is unread."""
        return name in self._unread

    def attribute(self, name: str, default: float) -> float:
        """Return a number; ImportFormatError if it is an array."""
        stored = self._unread.pop(name, None)
        if stored is None:
            return default
        if stored.numel() != 1:
            raise ImportFormatError(f"{self.path}: {name} has the shape {list(stored.shape)}: expected one number")
        return float(stored)

    def take(self, name: str) -> Tensor | None:
        """Return a variable as stored, or None."""
        return self._unread.pop(name, None)

    def require(self, name: str, *allowed: float) -> None:
        """Reject a number other than the allowed ones."""
        value = self.attribute(name, allowed[0])
        if not any(math.isclose(value, each, rel_tol=1e-5) for each in allowed):
            raise ImportFormatError(f"{self.path}: {name} is {value:g}{_reason(name)}")

    def text(self, name: str, default: str) -> str:
        """Return a string."""
        stored = self._unread.pop(name, None)
        return default if stored is None else bytes(stored.flatten().to(torch.uint8).tolist()).decode(errors="replace")

    def array(self, name: str) -> Tensor:
        """Return a vector or matrix in float32; ImportFormatError if it is missing, or its scales do not fit."""
        if name not in self._unread:
            raise ImportFormatError(f"{self.path}: missing variable {name}")
        stored = self._unread.pop(name)
        scale = self._unread.pop(f"{name}_scale", None)
        if stored.is_floating_point():
            return stored.float()
        if id(stored) not in self._floats:
            self._floats[id(stored)] = self._dequantized(name, stored, scale)
        return self._floats[id(stored)]

    def finish(self) -> None:
        """Raise ImportFormatError for the first unread variable."""
        if self._unread:
            name = min(self._unread)
            raise ImportFormatError(f"{self.path}: unknown variable {name}{_reason(name)}")

    def num_layers(self, stack: str) -> int:
        """Return the number of layers of a stack that have unread variables."""
        count = 0
        while any(name.startswith(f"{stack}/layer_{count}/") for name in self._unread):
            count += 1
        return count

    def _dequantized(self, name: str, stored: Tensor, scale: Tensor | None) -> Tensor:
        # Returns integers divided by one scale, or one per row.
        if scale is None and stored.dtype == torch.int16:
            scale = torch.tensor(_GLOBAL_INT16_SCALE)
        if scale is None or stored.dtype == torch.int32:
            raise ImportFormatError(f"{self.path}: {name} has no scale")
        if scale.numel() not in (1, len(stored)) or not bool((scale.float().isfinite() & (scale != 0)).all()):
            raise ImportFormatError(f"{self.path}: {name}_scale does not match the rows of {name}")
        return stored.float() / scale.float().reshape(-1, *[1] * (stored.dim() - 1))


def _reason(name: str) -> str:
    for pattern, reason in _REASONS.items():
        if re.search(pattern, name):
            return f" is not supported: {reason}"
    return ""
