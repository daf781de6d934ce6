"""Files of operators and model authors: settings, callers, serving, manifests, graphs."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import onnx
import onnxruntime
from hypothesis import strategies as st
from onnx import TensorProto, helper

from dragoman_service.bundle.files import MANIFEST_NAME, Bundle, load_manifest
from dragoman_service.bundle.manifest import Manifest
from dragoman_service.cli.probe import own_server
from dragoman_service.config import Settings, load_settings, setting_fields, settings_of_model
from dragoman_service.errors import BundleError, ConfigError
from dragoman_service.models.serving import SERVING_NAME, ServingSettings, check_on_disk, read_serving
from dragoman_service.runtimes.onnx.model_file import external_files, read_model
from dragoman_service.security.api_keys import Caller, Permission, new_key, parse_callers, store
from loadtests.hostile.mutations import mutated, mutated_json, toml
from tests.fuzz.target import Check, Target, bounded

_MODELS: Final = Path(__file__).resolve().parents[2] / "deploy" / "models" / "dragoman_models"
_TOKENS: Final = (
    *(b"[", b"]", b"[[", b"{", b"}", b"{a=", b"a.", b".", b"=", b'"', b'"""', b"'", b",", b"#", b"\n", b"\r\n", b"\\u"),
    *(
        b"0x",
        b"9",
        b"-",
        b"1e",
        b"nan",
        b"inf",
        b"true",
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xa8",
    ),
)


def _in_directory(check: Callable[[Path, bytes], None]) -> Callable[[], Iterator[Check]]:
    def opened() -> Iterator[Check]:
        with tempfile.TemporaryDirectory() as directory, bounded(partial(check, Path(directory))) as judged:
            yield judged

    return opened


def check_manifest(directory: Path, content: bytes) -> None:
    """Parse a manifest."""
    (directory / MANIFEST_NAME).write_bytes(content)
    try:
        load_manifest(directory)
    except BundleError as error:
        _check_message(error, content)


def check_int8_weights(directory: Path, content: bytes) -> None:
    """Parse the index of int8 weights; accepted offsets are within the file of weights."""
    manifest = Manifest.model_validate_json(_MANIFEST)
    files = manifest.precisions[_INT8]
    (directory / str(files.int8_weights)).write_bytes(content)
    try:
        weights = Bundle(directory=directory, manifest=manifest).int8_weights(_INT8)
    except BundleError as error:
        _check_message(error, content)
        return
    assert weights is not None
    size = manifest.files[str(files.weights)].bytes
    tensors = [*weights.decoder.tensors.values(), *(weights.encoder.tensors.values() if weights.encoder else ())]
    assert all(0 <= tensor.offset <= size - tensor.num_bytes for tensor in tensors)


def check_callers(_: Path, content: bytes) -> None:
    """Parse a callers file; messages never contain a stored key."""
    try:
        callers = parse_callers(content)
    except ValueError as error:
        _check_message(error, content, secret=_DIGEST)
    else:
        assert callers.with_key("") is None


def check_settings(directory: Path, content: bytes) -> None:
    """Read a settings file, as the server and as its probe does."""
    path = directory / "service.toml"
    path.write_bytes(content)
    try:
        load_settings(file=path)
    except ConfigError as error:
        _check_message(error, content)
    try:
        own_server({"DRAGOMAN_CONFIG": str(path)})
    except ValueError as error:
        _check_message(error, content)


def check_environment(_: Path, content: bytes) -> None:
    """Parse settings from environment variables, one per line, without zero bytes."""
    lines = os.fsdecode(content.replace(b"\0", b"")).split("\n")
    variables = {name: value for name, _, value in (line.partition("=") for line in lines)}
    try:
        load_settings(environment=variables)
    except ConfigError as error:
        _check_message(error, content)
    try:
        own_server(variables)
    except (OSError, ValueError) as error:
        _check_message(error, content)


def check_serving(directory: Path, content: bytes) -> None:
    """Parse serving.toml and combine it with the settings and the available versions."""
    (directory / SERVING_NAME).write_bytes(content)
    try:
        serving = read_serving(directory)
        settings_of_model(Settings(), serving, origin=directory / SERVING_NAME)
        check_on_disk(serving, directory, ("1", "2"))
    except ConfigError as error:
        _check_message(error, content)


def check_graph(directory: Path, content: bytes) -> None:
    """Find the external files of a graph; ONNX Runtime must not open others."""
    path = directory / "graph.onnx"
    path.write_bytes(content)
    try:
        names = external_files(read_model(path))
    except ValueError as error:
        _check_message(error, content)
        return
    if _ELSEWHERE.decode() in names or _ELSEWHERE not in content:
        return
    try:
        onnxruntime.InferenceSession(path, _QUIET, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 (its exception classes have no common base)
        _check_message(
            error, content, secret=_ELSEWHERE.decode()
        )  # ONNX Runtime tried to open a file that was not found


def _check_message(error: Exception, content: bytes, *, secret: str = "") -> None:
    """Check that the message is of bounded length and does not contain a secret."""
    message = str(error)
    assert len(message) <= 4 * len(content) + 4000
    assert not secret or secret not in message


_KEY: Final = store(new_key())
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
_ELSEWHERE: Final = b"elsewhere.bin"
_QUIET: Final = onnxruntime.SessionOptions()
_QUIET.log_severity_level = 4


def _graph() -> bytes:
    weights = TensorProto(name="a", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value=_ELSEWHERE.decode())
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


@st.composite
def _graphs(draw: st.DrawFn) -> bytes:
    """Draw a graph whose keys and lengths have redundant bytes, and bits that a parser may ignore."""
    return _reencoded(draw, onnx.ModelProto.FromString(_graph()).SerializeToString(), depth=0)


def _reencoded(draw: st.DrawFn, message: bytes, *, depth: int) -> bytes:
    written, position = b"", 0
    while position < len(message):
        key, position = _varint(message, position)
        number, position = _varint(message, position)
        content = b""
        if key & 7 == 2:
            content, position = message[position : position + number], position + number
            if depth < _NESTED.get(key >> 3, 0):
                content = _reencoded(draw, content, depth=depth + 1)
        odd = draw(st.integers(0, 30))
        key |= 1 << 32 + odd if odd < 3 else 0
        written += _encoded(key, padding=draw(st.sampled_from([0, 0, 0, 1, 4, 9])))
        written += _encoded(len(content) if key & 7 == 2 else number, padding=draw(st.sampled_from([0, 0, 0, 4, 9])))
        written += content
    return written


_NESTED: Final = {7: 1, 5: 2, 1: 2, 13: 3}  # fields that lead to a file name, and their maximum depth


def _varint(message: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (message[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if message[position - 1] < 0x80:
            return number, position


def _encoded(number: int, *, padding: int) -> bytes:
    groups: list[int] = []
    while number or not groups:
        groups.append(number & 0x7F)
        number >>= 7
    groups += [0] * max(0, padding - len(groups))
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])


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


def _target(name: str, inputs: st.SearchStrategy[bytes], check: Callable[[Path, bytes], None]) -> Target:
    return Target(name=name, inputs=inputs, opened=contextmanager(_in_directory(check)))


_MANIFEST: Final = next(_MODELS.glob(f"*/*/{MANIFEST_NAME}")).read_bytes()
_INT8_WEIGHTS: Final = next(_MODELS.glob("*/*/weights.int8.json")).read_bytes()
_CALLER_KEYS: Final = (*Caller.model_fields, *(permission.value for permission in Permission), "caller")

FILES: Final = (
    _target("manifest", st.one_of(mutated([_MANIFEST], _TOKENS), mutated_json(json.loads(_MANIFEST))), check_manifest),
    _target(
        "int8-weights",
        st.one_of(mutated([_INT8_WEIGHTS], _TOKENS), mutated_json(json.loads(_INT8_WEIGHTS))),
        check_int8_weights,
    ),
    _target("callers", st.one_of(mutated([_CALLERS], _TOKENS), toml(["[[caller]]"], _CALLER_KEYS)), check_callers),
    _target("settings", st.one_of(mutated([_SETTINGS], _TOKENS), _settings_lines()), check_settings),
    _target("environment", _variables(), check_environment),
    _target(
        "serving",
        st.one_of(
            mutated([_SERVING], _TOKENS),
            toml(
                ["[labels]", "[scheduling]", "[runtime]"], [*ServingSettings.model_fields, "max_batch_rows", "device"]
            ),
        ),
        check_serving,
    ),
    _target("graph", st.one_of(_graphs(), mutated([_graph()], [b"\xff", b"\x80", b"\x01", b"\x0a\x02"])), check_graph),
)
