"""Generate the Python modules of `dragoman.v1` beside their proto file.

    python proto/generate.py            write them
    python proto/generate.py --check    exit with 1 if writing would change them

`proto/` is the root of all imports, so that the import name is `dragoman.v1`. The output depends on the proto file and
the installed version of grpcio-tools only. protoc types the messages; the types of the services are written here.
"""

import argparse
import sys
import tempfile
from importlib import resources
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc  # type: ignore[import-untyped]

PROTO_ROOT = Path(__file__).resolve().parent
"""Where imports begin."""

PROTO_FILE = Path("dragoman/v1/translation.proto")
"""Relative to `PROTO_ROOT`."""

GENERATED_SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
"""What follows the stem of the proto file in the name of each generated module."""

DESCRIPTOR_SET = "descriptors.binpb"
"""Where protoc puts the descriptors of the proto file, in the output directory."""

HEADER = "# Generated from translation.proto by proto/generate.py; do not edit.\n# mypy: ignore-errors\n"
"""First lines of each generated module."""


def main() -> int:
    """Write or check the generated modules; return the exit status."""
    parser = argparse.ArgumentParser(description="Generate the Python modules of dragoman.v1.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a module is out of date")
    is_check = parser.parse_args().check

    stale = {path: text for path, text in generate().items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        if is_check:
            print(f"{path} is out of date: run python proto/generate.py", file=sys.stderr)
        else:
            path.write_text(text, "utf-8")
    return 1 if is_check and stale else 0


def generate() -> dict[Path, str]:
    """Return the text of each generated module by the path it belongs to."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory)
        run_protoc(output)
        write_service_types(output)
        modules = [PROTO_FILE.with_name(PROTO_FILE.stem + suffix) for suffix in GENERATED_SUFFIXES]
        return {PROTO_ROOT / module: HEADER + (output / module).read_text("utf-8") for module in modules}


def run_protoc(output: Path) -> None:
    """Let protoc write its modules below the directory `output`.

    Raises:
        SystemExit: if protoc refuses the proto file; it has told why on stderr.
    """
    well_known_types = resources.files("grpc_tools") / "_proto"
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={PROTO_ROOT}",
            f"--proto_path={PROTO_ROOT / 'third_party'}",
            f"--proto_path={well_known_types}",
            f"--python_out={output}",
            f"--pyi_out={output}",
            f"--grpc_python_out={output}",
            f"--descriptor_set_out={output / DESCRIPTOR_SET}",
            str(PROTO_FILE),
        ]
    )
    if status != 0:
        raise SystemExit(status)


def write_service_types(output: Path) -> None:
    """Write the types of the stubs and servicers, which protoc leaves out, beside their module in `output`."""
    descriptors = descriptor_pb2.FileDescriptorSet.FromString((output / DESCRIPTOR_SET).read_bytes())
    package = ".".join(PROTO_FILE.parent.parts)
    lines = ["from typing import Any", "", f"from {package} import {PROTO_FILE.stem}_pb2 as pb"]
    for service in descriptors.file[0].service:
        lines += ["", *service_types(service)]
    path = output / PROTO_FILE.with_name(PROTO_FILE.stem + "_pb2_grpc.pyi")
    path.write_text("\n".join(lines) + "\n", "utf-8")


def service_types(service: descriptor_pb2.ServiceDescriptorProto) -> list[str]:
    """Return the lines that type one service; what a stub returns depends on the channel and is Any."""
    lines = [f"class {service.name}Stub:", "    def __init__(self, channel: Any) -> None: ..."]
    lines += [f"    {method.name}: Any" for method in service.method]
    lines += ["", f"class {service.name}Servicer:"]
    lines += [
        f"    def {method.name}(self, {request_parameter(method)}, context: Any) -> Any: ..."
        for method in service.method
    ]
    return [
        *lines,
        "",
        f"def add_{service.name}Servicer_to_server(servicer: {service.name}Servicer, server: Any) -> None: ...",
    ]


def request_parameter(method: descriptor_pb2.MethodDescriptorProto) -> str:
    """Return the first parameter of the method of a servicer, as protoc names it, with its type."""
    if method.client_streaming:
        return "request_iterator: Any"
    return f"request: pb.{method.input_type.rpartition('.')[2]}"


if __name__ == "__main__":
    sys.exit(main())
