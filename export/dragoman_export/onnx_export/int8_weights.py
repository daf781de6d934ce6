"""Describes int8 networks for whoever has no graph: where their weights lie, and how they round activations."""

from collections.abc import Collection, Mapping

import onnx_ir as ir
from pydantic import ValidationError

from dragoman_export.errors import ImportFormatError
from dragoman_export.onnx_export.write import WeightsFile
from dragoman_service.bundle.architecture import Architecture, Limits
from dragoman_service.bundle.int8_weights import (
    WEIGHTS_ALIGNMENT_BYTES,
    ActivationScale,
    Int8Weights,
    NetworkWeights,
    StoredTensor,
    decoder_arrays,
    decoder_products,
    encoder_arrays,
    encoder_products,
)


def describe_weights(
    encoder: ir.Model, decoder: ir.Model, weights: WeightsFile, architecture: Architecture, limits: Limits
) -> Int8Weights | None:
    """Return where the arrays of two graphs lie in the file of weights, appending those that only a graph has.

    None if a product of the decoder is not int8. If one of the encoder is not, the encoder is left out.

    Raises:
        ImportFormatError: if an array or a product is not as `dragoman_export.onnx_export` makes them.
    """
    described = _describe(decoder, decoder_arrays(architecture, limits), decoder_products(architecture), weights)
    if described is None:
        return None
    arrays, products = encoder_arrays(architecture, limits), encoder_products(architecture)
    return Int8Weights(decoder=described, encoder=_describe(encoder, arrays, products, weights))


def _describe(
    model: ir.Model,
    expected: Mapping[str, tuple[str, tuple[int, ...]]],
    products: Collection[str],
    weights: WeightsFile,
) -> NetworkWeights | None:
    """Return where the expected arrays of a graph lie; None if it lacks one, as if a product is not int8."""
    stored, scales = model.graph.initializers, int8_scales(model)
    if not (expected.keys() <= stored.keys() and scales.keys() >= set(products)):
        return None
    try:
        return NetworkWeights(
            tensors={name: _place(stored[name], kind, weights) for name, kind in expected.items()},
            activations={path: scales[path] for path in products},
        )
    except ValidationError as error:
        raise ImportFormatError(f"the {model.graph.name} cannot be described: {error}") from error


def int8_scales(model: ir.Model) -> Mapping[str, ActivationScale | None]:
    """Return what the int8 products of a graph round their activations with, by path; None: each row has its own scale.

    Raises:
        ImportFormatError: if a product rounds them in another way.
    """
    return dict(_scale(node) for node in model.graph if node.op_type == "MatMulIntegerToFloat")


def _scale(product: ir.Node) -> tuple[str, ActivationScale | None]:
    rounded, weight, scale, _, zero_point, *_ = product.inputs
    table = weight.producer() if weight is not None else None  # is transposed first
    name = str((table.inputs[0] if table else weight).name)  # type: ignore[union-attr]
    path = name.removesuffix(".weight.int8")
    rounding = rounded.producer() if rounded is not None else None
    if rounding is None or rounding.op_type != "QuantizeLinear" or scale is None or zero_point is None:
        raise ImportFormatError(f"the product with {name} does not take activations that were rounded before")
    if rounding.inputs[1] is not scale:  # that of each row multiplies what comes out
        return path, None
    if scale.const_value is None or zero_point.const_value is None:
        raise ImportFormatError(f"the product with {name} takes a scale that is not stored")
    numbers = scale.const_value.numpy().item(), zero_point.const_value.numpy().item()
    try:
        return path, ActivationScale(scale=numbers[0], zero_point=numbers[1])
    except ValidationError as error:
        raise ImportFormatError(f"the product with {name} takes scale and zero point {numbers}: {error}") from error


def _place(value: ir.Value, expected: tuple[str, tuple[int, ...]], weights: WeightsFile) -> StoredTensor:
    """Return the place of an array, which is appended to the file unless it is there, at an aligned offset."""
    tensor = value.const_value
    if tensor is None or (kind := (tensor.dtype.numpy().name, tensor.shape.numpy())) != expected:
        raise ImportFormatError(f"{value.name} is {tensor and kind}: expected {expected}")
    if isinstance(tensor, ir.ExternalTensor) and str(tensor.location) != weights.name:
        raise ImportFormatError(f"{value.name} is in {tensor.location}: expected {weights.name}")
    if not isinstance(tensor, ir.ExternalTensor) or (tensor.offset or 0) % WEIGHTS_ALIGNMENT_BYTES:
        tensor = weights.store(tensor)
    return StoredTensor(dtype=kind[0], shape=kind[1], offset=tensor.offset or 0)  # type: ignore[arg-type]
