"""Generate Python modules next to their proto files: `dragoman.v1`, and the ONNX model of the service.

    python proto/generate.py            write the modules if they are out of date
    python proto/generate.py --check    write nothing; exit with 1 if the modules are out of date

Generated modules run with the protobuf and grpcio of their generator and with newer ones, so the oldest supported
generator writes them. It conflicts with the packages of the server; uv runs it in an environment of its own. The check
needs no such environment: it compares the descriptors of the modules with those of the proto files. protoc writes the
types of messages; this script writes the types of services.
"""

import argparse
import ast
import re
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc  # type: ignore[import-untyped]

PROTO_ROOT = Path(__file__).resolve().parent
SERVICE_ROOT = PROTO_ROOT.parent / "service"
SERVICES = "dragoman/v1/translation"  # the file that declares the services
FILES = {  # root by path without suffix
    "dragoman/v1/options": PROTO_ROOT,
    SERVICES: PROTO_ROOT,
    "dragoman_service/runtimes/onnx/model": SERVICE_ROOT,
}

GENERATOR = "grpcio-tools==1.74.0"  # protobuf 6.31.1; the lower bounds of grpcio and protobuf in pyproject.toml
HEADER = "# Generated from {name}.proto by proto/generate.py; do not edit.\n# mypy: ignore-errors\n"

_EXPERIMENTAL = re.compile(
    r"\n\n ?# This class is part of an EXPERIMENTAL API.\nclass .*?(?=\n\n\nclass |\Z)", re.DOTALL
)
_SERIALIZED = re.compile(r"AddSerializedFile\((b'.*')\)")


def main() -> int:
    """Write or check the generated modules; return the exit status."""
    parser = argparse.ArgumentParser(description="Generate the Python modules of the proto files.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a module is out of date")
    is_check = parser.parse_args().check
    compiled, comments = compiled_files()
    types = "\n".join(service_types(compiled[SERVICES])) + "\n"
    stale = stale_modules(compiled, comments, types)
    if is_check:
        for path in stale:
            print(f"{path} is out of date: run python proto/generate.py", file=sys.stderr)
        return 1 if stale else 0
    if stale:
        write_modules(types)
    return 0


def compiled_files() -> tuple[dict[str, descriptor_pb2.FileDescriptorProto], list[str | None]]:
    """Return the descriptor of each proto file, and the comments of the services, as the installed protoc has them.

    Raises:
        SystemExit: if protoc rejects a file; protoc has printed the reason.
    """
    with tempfile.TemporaryDirectory() as directory:
        descriptors = Path(directory) / "descriptors.binpb"
        outputs = [f"--descriptor_set_out={descriptors}", f"--grpc_python_out={directory}"]
        status = protoc.main(
            ["protoc", f"--proto_path={resources.files('grpc_tools') / '_proto'}", *outputs, *_sources()]
        )
        if status != 0:
            raise SystemExit(status)
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file
        comments = _docstrings(Path(directory) / f"{SERVICES}_pb2_grpc.py")
    for file in files:
        for field in (*file.extension, *(field for message in file.message_type for field in message.field)):
            field.ClearField("json_name")  # generated modules omit it
    return dict(zip(FILES, files, strict=True)), comments


def stale_modules(
    compiled: dict[str, descriptor_pb2.FileDescriptorProto], comments: list[str | None], types: str
) -> list[Path]:
    """Return the modules that do not match the proto files."""
    modules = {name: _module(name, "_pb2.py") for name in FILES}
    stale = [path for name, path in modules.items() if _generated_file(path) != compiled[name]]
    if _docstrings(_module(SERVICES, "_pb2_grpc.py")) != comments:
        stale.append(_module(SERVICES, "_pb2_grpc.py"))
    if _read(_module(SERVICES, "_pb2_grpc.pyi")) != HEADER.format(name=Path(SERVICES).name) + types:
        stale.append(_module(SERVICES, "_pb2_grpc.pyi"))
    return stale


def write_modules(types: str) -> None:
    """Let the oldest supported generator write the modules; write the types of the services."""
    uv = [sys.executable, "-m", "uv", "run", "--no-project", "--with", GENERATOR]
    with tempfile.TemporaryDirectory() as directory:
        outputs = [f"--{kind}_out={directory}" for kind in ("python", "pyi", "grpc_python")]
        subprocess.run([*uv, "python", "-m", "grpc_tools.protoc", *outputs, *_sources()], check=True)  # noqa: S603
        for name in FILES:
            suffixes = ("_pb2.py", "_pb2.pyi", *(["_pb2_grpc.py"] if name == SERVICES else []))
            for suffix in suffixes:
                text = (Path(directory) / (name + suffix)).read_text("utf-8")
                text = _EXPERIMENTAL.sub("\n", text)  # calls without a channel, which nothing uses
                _module(name, suffix).write_text(HEADER.format(name=Path(name).name) + text, "utf-8")
    _module(SERVICES, "_pb2_grpc.pyi").write_text(HEADER.format(name=Path(SERVICES).name) + types, "utf-8")


def service_types(file: descriptor_pb2.FileDescriptorProto) -> list[str]:
    """Return the lines that type the services of a file. The result of a stub depends on the channel and is Any."""
    package, _, module = SERVICES.replace("/", ".").rpartition(".")
    lines = ["from typing import Any", "", f"from {package} import {module}_pb2 as pb"]
    for service in file.service:
        lines += ["", f"class {service.name}Stub:", "    def __init__(self, channel: Any) -> None: ..."]
        lines += [f"    {method.name}: Any" for method in service.method]
        lines += ["", f"class {service.name}Servicer:"]
        for method in service.method:
            message = f"request: pb.{method.input_type.rpartition('.')[2]}"
            parameter = "request_iterator: Any" if method.client_streaming else message
            lines += [f"    def {method.name}(self, {parameter}, context: Any) -> Any: ..."]
        servicer = f"servicer: {service.name}Servicer, server: Any"
        lines += ["", f"def add_{service.name}Servicer_to_server({servicer}) -> None: ..."]
    return lines


def _sources() -> list[str]:
    roots = [f"--proto_path={root}" for root in (PROTO_ROOT, PROTO_ROOT / "third_party", SERVICE_ROOT)]
    return [*roots, *(f"{name}.proto" for name in FILES)]


def _module(name: str, suffix: str) -> Path:
    return FILES[name] / (name + suffix)


def _read(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def _docstrings(path: Path) -> list[str | None]:
    tree = ast.parse(_EXPERIMENTAL.sub("\n", _read(path)))
    return [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)]


def _generated_file(path: Path) -> descriptor_pb2.FileDescriptorProto | None:
    serialized = _SERIALIZED.search(_read(path))
    return serialized and descriptor_pb2.FileDescriptorProto.FromString(ast.literal_eval(serialized[1]))


if __name__ == "__main__":
    sys.exit(main())
