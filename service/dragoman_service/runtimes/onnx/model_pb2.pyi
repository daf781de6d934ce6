# Generated from model.proto by proto/generate.py; do not edit.
# mypy: ignore-errors
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Model(_message.Message):
    __slots__ = ("ir_version", "producer_name", "graph", "opset_import", "functions")
    IR_VERSION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    OPSET_IMPORT_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    ir_version: int
    producer_name: str
    graph: Graph
    opset_import: _containers.RepeatedCompositeFieldContainer[OperatorSet]
    functions: _containers.RepeatedCompositeFieldContainer[Function]
    def __init__(self, ir_version: _Optional[int] = ..., producer_name: _Optional[str] = ..., graph: _Optional[_Union[Graph, _Mapping]] = ..., opset_import: _Optional[_Iterable[_Union[OperatorSet, _Mapping]]] = ..., functions: _Optional[_Iterable[_Union[Function, _Mapping]]] = ...) -> None: ...

class OperatorSet(_message.Message):
    __slots__ = ("domain", "version")
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    domain: str
    version: int
    def __init__(self, domain: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Graph(_message.Message):
    __slots__ = ("node", "name", "initializer", "input", "output", "sparse_initializer")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SPARSE_INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    node: _containers.RepeatedCompositeFieldContainer[Node]
    name: str
    initializer: _containers.RepeatedCompositeFieldContainer[Tensor]
    input: _containers.RepeatedCompositeFieldContainer[ValueInfo]
    output: _containers.RepeatedCompositeFieldContainer[ValueInfo]
    sparse_initializer: _containers.RepeatedCompositeFieldContainer[SparseTensor]
    def __init__(self, node: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., name: _Optional[str] = ..., initializer: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., input: _Optional[_Iterable[_Union[ValueInfo, _Mapping]]] = ..., output: _Optional[_Iterable[_Union[ValueInfo, _Mapping]]] = ..., sparse_initializer: _Optional[_Iterable[_Union[SparseTensor, _Mapping]]] = ...) -> None: ...

class Function(_message.Message):
    __slots__ = ("node", "attribute_proto")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTE_PROTO_FIELD_NUMBER: _ClassVar[int]
    node: _containers.RepeatedCompositeFieldContainer[Node]
    attribute_proto: _containers.RepeatedCompositeFieldContainer[Attribute]
    def __init__(self, node: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., attribute_proto: _Optional[_Iterable[_Union[Attribute, _Mapping]]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("input", "output", "name", "op_type", "attribute")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    input: _containers.RepeatedScalarFieldContainer[str]
    output: _containers.RepeatedScalarFieldContainer[str]
    name: str
    op_type: str
    attribute: _containers.RepeatedCompositeFieldContainer[Attribute]
    def __init__(self, input: _Optional[_Iterable[str]] = ..., output: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., op_type: _Optional[str] = ..., attribute: _Optional[_Iterable[_Union[Attribute, _Mapping]]] = ...) -> None: ...

class Attribute(_message.Message):
    __slots__ = ("name", "i", "t", "g", "tensors", "graphs", "type", "sparse_tensor", "sparse_tensors")
    NAME_FIELD_NUMBER: _ClassVar[int]
    I_FIELD_NUMBER: _ClassVar[int]
    T_FIELD_NUMBER: _ClassVar[int]
    G_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_TENSOR_FIELD_NUMBER: _ClassVar[int]
    SPARSE_TENSORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    i: int
    t: Tensor
    g: Graph
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    graphs: _containers.RepeatedCompositeFieldContainer[Graph]
    type: int
    sparse_tensor: SparseTensor
    sparse_tensors: _containers.RepeatedCompositeFieldContainer[SparseTensor]
    def __init__(self, name: _Optional[str] = ..., i: _Optional[int] = ..., t: _Optional[_Union[Tensor, _Mapping]] = ..., g: _Optional[_Union[Graph, _Mapping]] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., graphs: _Optional[_Iterable[_Union[Graph, _Mapping]]] = ..., type: _Optional[int] = ..., sparse_tensor: _Optional[_Union[SparseTensor, _Mapping]] = ..., sparse_tensors: _Optional[_Iterable[_Union[SparseTensor, _Mapping]]] = ...) -> None: ...

class SparseTensor(_message.Message):
    __slots__ = ("values", "indices")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    values: Tensor
    indices: Tensor
    def __init__(self, values: _Optional[_Union[Tensor, _Mapping]] = ..., indices: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dims", "data_type", "name", "raw_data", "external_data")
    DIMS_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RAW_DATA_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_DATA_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedScalarFieldContainer[int]
    data_type: int
    name: str
    raw_data: bytes
    external_data: _containers.RepeatedCompositeFieldContainer[Entry]
    def __init__(self, dims: _Optional[_Iterable[int]] = ..., data_type: _Optional[int] = ..., name: _Optional[str] = ..., raw_data: _Optional[bytes] = ..., external_data: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ValueInfo(_message.Message):
    __slots__ = ("name", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: Type
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[Type, _Mapping]] = ...) -> None: ...

class Type(_message.Message):
    __slots__ = ("tensor_type",)
    TENSOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    tensor_type: TensorType
    def __init__(self, tensor_type: _Optional[_Union[TensorType, _Mapping]] = ...) -> None: ...

class TensorType(_message.Message):
    __slots__ = ("elem_type",)
    ELEM_TYPE_FIELD_NUMBER: _ClassVar[int]
    elem_type: int
    def __init__(self, elem_type: _Optional[int] = ...) -> None: ...
