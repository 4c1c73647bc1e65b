"""Writes files atomically: a reader sees the old file or the whole new one."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file, whole or not at all, as :func:`replacing` does."""
    with replacing(Path(path)) as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file to write into, which replaces ``path`` when the block ends without an exception.

    A reader sees the old file or the whole new one, which has the old one's permissions. Of a symbolic link, the file that it
    leads to is replaced; pipes and devices are written to. Raises OSError if writing fails, and for a folder, with the name
    ``path``; the temporary file is removed then.
    """
    refuse_folder(path)
    if path.exists() and not path.is_file():
        with naming(path), path.open("wb") as file:
            yield file
        return
    given, path = path, Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with naming(given, str(name)):
        try:
            with name.open("xb") as file:
                if path.exists() and (mode := stat.S_IMODE(path.stat().st_mode)) != stat.S_IMODE(name.stat().st_mode):
                    name.chmod(mode)
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            # On a file system that cannot be written, this fails as well.
            with suppress(OSError):
                name.unlink()
            raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def refuse_folder(path: Path) -> None:
    """Raises IsADirectoryError for the path of a folder."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "expected the path of a file, but this is a folder", str(path))


@contextmanager
def naming(path: Path, temporary: str | None = None) -> Iterator[None]:
    """Within the block, a system's error that names the temporary file, or none, as a full disk's, is made to name ``path``."""
    try:
        yield
    except OSError as error:
        # One without an errno has a text of its own, which a file's name would replace.
        if error.errno is not None and error.filename in (None, temporary):
            error.filename = str(path)
            del error.filename2
        raise
