"""Build of the shared library. It is loaded with ctypes, so that one wheel serves all versions of Python."""

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FLAGS = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-ffp-contract=off",  # same results with each instruction set
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-ignored-attributes",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",  # false positives of GCC 12 in its intrinsics headers
    "-Wno-uninitialized",
]


class BuildLibrary(build_ext):
    """Builds a shared library instead of an extension module of one version of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path below the build folder."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extensions(self) -> None:
        """Build the library; exit with an error on machines other than x86-64 and aarch64."""
        if platform.machine().lower() not in ("x86_64", "amd64", "aarch64"):
            raise SystemExit(
                f"dragoman-native requires x86-64 or aarch64, not {platform.machine()}; "
                "without it, the service uses ONNX Runtime"
            )
        super().build_extensions()


class PlatformWheel(bdist_wheel):
    """Tags the wheel for any Python 3 on this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, ABI and platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "dragoman_native.libdragoman_native",
            sources=sorted(
                str(path.relative_to(Path(__file__).parent)) for path in Path(__file__).parent.glob("src/*.cpp")
            ),
            depends=[
                __file__,
                *sorted(
                    str(path) for pattern in ("*.hpp", "*.inc") for path in Path(__file__).parent.glob(f"src/{pattern}")
                ),
            ],
            extra_compile_args=FLAGS,
            extra_link_args=["-static-libstdc++", "-static-libgcc", "-pthread", "-s"],
            language="c++",
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
