"""Files of operators and model authors: settings, callers, serving, manifests, graphs."""

import atexit
import functools
import json
import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import onnxruntime
from hypothesis import strategies as st
from onnx import TensorProto, helper

from dragoman_service.bundle.files import MANIFEST_NAME, Bundle, load_manifest
from dragoman_service.bundle.manifest import Manifest
from dragoman_service.config import Settings, load_settings, setting_fields, settings_of_model
from dragoman_service.errors import BundleError, ConfigError
from dragoman_service.models.serving import SERVING_NAME, ServingSettings, check_on_disk, read_serving
from dragoman_service.runtimes.onnx.model_file import external_files, read_model
from dragoman_service.security.api_keys import Caller, Permission, StoredKey, new_key, parse_callers
from loadtests.hostile.mutations import mutated, mutated_json, toml
from tests.fuzz.target import in_process

_BUNDLE: Final = Path(__file__).resolve().parents[2] / "deploy" / "models" / "dragoman_models" / "en-de" / "1"
_TOKENS: Final = [
    *b'[ ] [[ { {a= a. . = " """ \' , # \\u 0x 9 - 1e nan inf true'.split(b" "),
    *(b"\n", b"\r\n", b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
]


@functools.cache
def _directory() -> Path:
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)
    return Path(directory.name)


def _written(name: str, content: bytes) -> Path:
    path = _directory() / name
    path.write_bytes(content)
    return path


@contextmanager
def _rejects_with(*errors: type[Exception], content: bytes, secret: str = "") -> Iterator[None]:
    """Allow errors whose message is of bounded length and does not contain a secret."""
    try:
        yield
    except errors as error:
        message = str(error)
        assert len(message) <= 4 * len(content) + 4000
        assert not secret or secret not in message


def check_manifest(content: bytes) -> None:
    """Parse a manifest."""
    path = _written(MANIFEST_NAME, content)
    with _rejects_with(BundleError, content=content):
        load_manifest(path.parent)


def check_int8_weights(content: bytes) -> None:
    """Parse the index of int8 weights; accepted offsets are within the file of weights."""
    manifest = Manifest.model_validate_json(_MANIFEST)
    files = manifest.precisions[_INT8]
    path = _written(str(files.int8_weights), content)
    with _rejects_with(BundleError, content=content):
        weights = Bundle(directory=path.parent, manifest=manifest).int8_weights(_INT8)
        assert weights is not None
        size = manifest.files[str(files.weights)].bytes
        tensors = [*weights.decoder.tensors.values(), *(weights.encoder.tensors.values() if weights.encoder else ())]
        assert all(0 <= tensor.offset <= size - tensor.num_bytes for tensor in tensors)


def check_callers(content: bytes) -> None:
    """Parse a callers file; messages never contain a stored key."""
    with _rejects_with(ValueError, content=content, secret=_DIGEST):
        assert parse_callers(content).with_key("") is None


def check_settings(content: bytes) -> None:
    """Read a settings file."""
    path = _written("service.toml", content)
    with _rejects_with(ConfigError, content=content):
        load_settings(file=path)


def check_environment(content: bytes) -> None:
    """Parse settings from environment variables, one per line, without zero bytes."""
    lines = os.fsdecode(content.replace(b"\0", b"")).split("\n")
    variables = {name: value for name, _, value in (line.partition("=") for line in lines)}
    with _rejects_with(ConfigError, content=content):
        load_settings(environment=variables)


def check_serving(content: bytes) -> None:
    """Parse serving.toml and combine it with the settings and the available versions."""
    path = _written(SERVING_NAME, content)
    with _rejects_with(ConfigError, content=content):
        serving = read_serving(path.parent)
        settings_of_model(Settings(), serving, origin=path)
        check_on_disk(serving, path.parent, ("1", "2"))


def check_graph(content: bytes) -> None:
    """Find the external files of a graph; ONNX Runtime must not open others."""
    path = _written("graph.onnx", content)
    names: Collection[str] = {_ELSEWHERE}
    with _rejects_with(ValueError, content=content):
        names = external_files(read_model(path))
    if _ELSEWHERE not in names and _ELSEWHERE.encode() in content:
        # The message would contain the name if ONNX Runtime tried to open the file. Its errors have no common base.
        with _rejects_with(Exception, content=content, secret=_ELSEWHERE):
            onnxruntime.InferenceSession(path, _QUIET, providers=["CPUExecutionProvider"])


_KEY: Final = StoredKey.of(new_key())
_DIGEST: Final = _KEY.digest.hex()
_CALLERS: Final = (
    f'[[caller]]\nname = "shop"\nkeys = ["{_KEY}"]\npermissions = ["translate"]\nrequests_per_s = 50\n'
    '[[caller]]\nname = "ops"\ncertificates = ["ops.example.com"]\npermissions = ["translate", "admin"]\n'
).encode()
_SETTINGS: Final = (
    b'[grpc]\nport = 50051\nhost = "127.0.0.1"\n[limits]\nmax_texts = 16\n[access]\nallow_unauthenticated = true\n'
)
_SERVING: Final = (
    b'versions = ["1", "2"]\ndefault_version = "@stable"\n[labels]\nstable = "1"\n[scheduling]\nmax_batch_rows = 8\n'
    b"[runtime]\nnum_intra_op_threads = 1\n"
)
_INT8: Final = "int8"
_ELSEWHERE: Final = "elsewhere.bin"
_QUIET: Final = onnxruntime.SessionOptions()
_QUIET.log_severity_level = 4


def _graph() -> bytes:
    weights = TensorProto(name="a", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value=_ELSEWHERE)
    constant = helper.make_node("Constant", [], ["c"], value=weights)
    branch = helper.make_graph([constant], "branch", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, [2])])
    nodes = [
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("If", ["so"], ["d"], then_branch=branch, else_branch=branch),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("b", "d")]
    inputs = [helper.make_tensor_value_info("so", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializer=[weights])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    return model.SerializeToString()


def _settings_lines() -> st.SearchStrategy[bytes]:
    names = sorted(setting_fields())
    tables = sorted({f"[{name.partition('.')[0]}]" for name in names} | {"[[grpc]]", "[a.b]", "[grpc.port]"})
    return toml(tables, [name.partition(".")[2] for name in names])


def _variables() -> st.SearchStrategy[bytes]:
    names = [f"DRAGOMAN_{name.replace('.', '__')}".upper() for name in sorted(setting_fields())] + ["DRAGOMAN_CONFIG"]
    values = st.one_of(
        st.sampled_from(
            ["", "0", "-1", "1e3", "١", "true", "[]", "{}", "null", "10.0.0.1", "::", "/dev/null", "a" * 3000]
        ),
        st.text(st.characters(exclude_characters="\n"), max_size=12),
    )
    line = st.tuples(st.one_of(st.sampled_from(names), st.text(max_size=8).map("DRAGOMAN_{}".format)), values).map(
        "=".join
    )
    return st.lists(line, max_size=6).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass"))


_MANIFEST: Final = (_BUNDLE / MANIFEST_NAME).read_bytes()
_INT8_WEIGHTS: Final = (_BUNDLE / "weights.int8.json").read_bytes()
_SERVING_TABLES: Final = ("[labels]", "[scheduling]", "[runtime]")
_SERVING_KEYS: Final = (*ServingSettings.model_fields, "max_batch_rows", "device")
_CALLER_KEYS: Final = (*Caller.model_fields, *(permission.value for permission in Permission), "caller")

_WIRE_TOKENS: Final = (b"\xff", b"\x80", b"\x80\0", b"\x80\x80\x80\x80\x10", b"\x01", b"\x0a\x02", b"\x6a", b"location")

FILES: Final = (
    in_process(
        "manifest", st.one_of(mutated([_MANIFEST], _TOKENS), mutated_json(json.loads(_MANIFEST))), check_manifest
    ),
    in_process(
        "int8-weights",
        st.one_of(mutated([_INT8_WEIGHTS], _TOKENS), mutated_json(json.loads(_INT8_WEIGHTS))),
        check_int8_weights,
    ),
    in_process("callers", st.one_of(mutated([_CALLERS], _TOKENS), toml(["[[caller]]"], _CALLER_KEYS)), check_callers),
    in_process("settings", st.one_of(mutated([_SETTINGS], _TOKENS), _settings_lines()), check_settings),
    in_process("environment", _variables(), check_environment),
    in_process("serving", st.one_of(mutated([_SERVING], _TOKENS), toml(_SERVING_TABLES, _SERVING_KEYS)), check_serving),
    in_process("graph", mutated([_graph()], _WIRE_TOKENS), check_graph),
)
