"""Prometheus, promtool, Alertmanager and amtool from Debian's packages: unpacked, not installed."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_SUITE: Final = "trixie"  # its Alertmanager knows url_file, bookworm's does not
_PACKAGES: Final = ("prometheus", "promtool", "prometheus-alertmanager")
_SOURCE: Final = f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {{mirror}} {_SUITE} main\n"
_MIRROR: Final = "http://deb.debian.org/debian"
_SHARED: Final = 'mount --bind "$1" /usr/share && shift && exec "$@"'
_TIMEOUT_S: Final = 300.0


class ToolsMissingError(Exception):
    """The packages cannot be had here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The programs."""

    prometheus: Path
    promtool: Path
    alertmanager: Path
    amtool: Path
    share: Path
    """What the packages have in /usr/share."""

    @classmethod
    def below(cls, folder: Path) -> Self:
        """Return where they are once packages are unpacked into a folder."""
        programs = folder / "usr" / "bin"
        return cls(
            share=folder / "usr" / "share",
            prometheus=programs / "prometheus",
            promtool=programs / "promtool",
            alertmanager=programs / "prometheus-alertmanager",
            amtool=programs / "amtool",
        )

    @property
    def are_there(self) -> bool:
        """Whether all of them can be run."""
        return all(os.access(program, os.X_OK) for program in self._all())

    def alertmanager_command(self, *flags: str) -> tuple[str, ...]:
        """Return how to start Alertmanager.

        Debian's reads its templates from /usr/share, where unpacked packages are not: for this process alone they are.
        """
        return (
            "unshare",
            "--mount",
            "--map-root-user",
            "sh",
            "-c",
            _SHARED,
            "sh",
            str(self.share),
            str(self.alertmanager),
            *flags,
        )

    def _all(self) -> tuple[Path, ...]:
        return (self.prometheus, self.promtool, self.alertmanager, self.amtool)


def unpacked_tools(folder: Path) -> Tools:
    """Return the programs, downloaded into a folder unless they are there already.

    DRAGOMAN_DEBIAN_MIRROR names another mirror than deb.debian.org.

    Raises:
        ToolsMissingError: if apt is not there, or the packages cannot be downloaded or run.
    """
    tools = Tools.below(folder)
    if tools.are_there:
        return tools
    shutil.rmtree(folder, ignore_errors=True)
    for program in ("apt-get", "dpkg-deb", "unshare"):
        if shutil.which(program) is None:
            raise ToolsMissingError(f"{program} is not here; Debian and Ubuntu have it")
    options = _private_apt(folder / "apt")
    _run("apt-get", *options, "update", "-qq", within=folder)
    _run("apt-get", *options, "download", "-qq", *_PACKAGES, within=folder)
    for package in sorted(folder.glob("*.deb")):
        _run("dpkg-deb", "--extract", str(package), str(folder), within=folder)
        package.unlink()
    if not tools.are_there:
        raise ToolsMissingError(f"the packages {', '.join(_PACKAGES)} of {_SUITE} lack one of their programs")
    _run(str(tools.prometheus), "--version", within=folder)
    _run(*tools.alertmanager_command("--version"), within=folder)
    return tools


def _private_apt(folder: Path) -> tuple[str, ...]:
    """Return flags with which apt knows one suite, and leaves what the machine knows alone."""
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.list"
    mirror = os.environ.get("DRAGOMAN_DEBIAN_MIRROR", _MIRROR)
    sources.write_text(_SOURCE.format(mirror=mirror), encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "",
    }
    return tuple(f"-o{name}={value}" for name, value in settings.items())


def _run(*command: str, within: Path) -> None:
    try:
        subprocess.run(command, cwd=within, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or error
        raise ToolsMissingError(f"{command[0]} failed: {said}") from error
