"""The innermost loops of the integer products keep all their values in registers."""

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # compiles all kernels

SOURCES = Path(__file__).resolve().parents[4] / "service" / "native" / "src"
OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-w", "-S", "-o", "-")

FUNCTION = re.compile(
    r"^(\S*multiply_(?:block|centered|seven_bits|dots|pairs)\S*):\n(.*?)\.cfi_endproc", re.DOTALL | re.MULTILINE
)
LABEL = re.compile(r"(\.L\d+):$")
JUMP = re.compile(r"\s+(?:j\w+|b\.?[a-z]{2}|cbn?z\s.*,|tbn?z\s.*,)\s+(\.L\d+)$")
BYTE_PRODUCT = re.compile(r"\s*(?:(?:\{vex\} )?vp(?:maddubsw|dpbusd)|sdot|sudot|usmmla|smull2?)\s")
STACK_ACCESS = re.compile(r"\s*(?:v\S+\s.*\(%r[sb]p\)|(?:ld|st)[rp]\s+q.*\[(?:sp|x29)\b)")


def innermost_loops(body: str) -> Iterator[list[str]]:
    """Yield the lines of the loops that do not contain another loop."""
    lines = body.splitlines()
    labels = {match[1]: number for number, line in enumerate(lines) if (match := LABEL.match(line))}
    ends = [(labels[match[1]], number) for number, line in enumerate(lines) if (match := JUMP.match(line))]
    loops = [(begin, end) for begin, end in ends if begin < end]
    for begin, end in loops:
        if not any(begin <= inner and outer <= end and (inner, outer) != (begin, end) for inner, outer in loops):
            yield lines[begin:end]


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        *(("x86-64", name) for name in ("avx2", "avxvnni", "avx512bw", "avx512")),
        *(("aarch64", name) for name in ("neon", "dotprod", "i8mm")),
    ],
)
def test_products_do_not_spill_registers(architecture: str, name: str) -> None:
    is_native = platform.machine().replace("_", "-") == architecture
    compiler = "g++" if is_native else f"{architecture}-linux-gnu-g++"
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    command = [compiler, *OPTIONS, str(SOURCES / f"kernels_{name}.cpp")]
    assembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    products = [
        (function, loop)
        for function, body in FUNCTION.findall(assembly)
        for loop in innermost_loops(body)
        if any(map(BYTE_PRODUCT.match, loop))
    ]

    spills = {(function, line) for function, loop in products for line in loop if STACK_ACCESS.match(line)}

    assert len({function for function, _ in products}) >= 4, "not all numbers of rows found"
    assert not spills
