"""A directory of data files, published by one manifest: its lock, its atomic replacement, the removal of old files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from kstreams_py.errors import SinkUnavailable
from kstreams_py.sinks.manifest import Manifest, decode_manifest, encode_manifest

DATA: Final = "_data"
"""The directory of the files: Spark ignores names that begin with `_` when it reads the directory above."""

CHECKPOINT: Final = "_checkpoint"
LOCK: Final = "_lock"
MANIFEST: Final = "_manifest.json"
PUBLISHED: Final = "_published"
"""An empty file that exists while something is published: without it, a directory whose manifest is lost looks new."""

LOCK_SECONDS: Final = 5.0
"""Seconds that a writer waits for other writers that publish."""

KEPT_SECONDS: Final = 3600.0
"""How long unpublished files stay: a reader may have their names from an older manifest."""

_END_BYTES: Final = 64 * 1024
"""A file's digest covers at least this many bytes of its end: two files may have the same footer and different rows."""

_REMEDIES: Final = {
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space in its quota",
    errno.EFBIG: "raise the limit of file sizes",
    errno.EACCES: "give this user the right to write it",
    errno.EPERM: "give this user the right to write it",
    errno.EROFS: "name a directory that can be written",
    errno.ENOTDIR: "name a directory",
}


class Directory:
    """A directory of data files, shared by its writers and readers. It accesses no file until a method is called.

    A file is staged under a name that no manifest has, and is published when the manifest is replaced as a whole. The
    kernel releases the lock of a process that dies.
    """

    def __init__(self, path: Path) -> None:
        # absolute: Spark's Java process keeps the working directory in which it was started
        self.path = path.absolute()
        self.data = self.path / DATA
        self._syncing = ThreadPoolExecutor(4, "directory-sync")

    def __str__(self) -> str:
        return f"{self.path}"

    def prepare(self) -> None:
        """Creates the directory if it is missing."""
        self.data.mkdir(parents=True, exist_ok=True)
        _sync(self.path.absolute().parent)
        _sync(self.path)

    def read(self) -> Manifest | None:
        """Returns the published manifest, or None. Raises SinkUnavailable if it was edited or removed by hand."""
        path = self.path / MANIFEST
        try:
            if (content := self._content()) is None and (self.path / PUBLISHED).exists():
                content = self._content()  # the first manifest may have been published meanwhile
                if content is None and (self.path / PUBLISHED).exists():
                    raise ValueError("it was removed by hand")
            return None if content is None else decode_manifest(content)
        except ValueError as error:
            raise SinkUnavailable(
                f"{path}: {error}: restore it, or move the directory away, then start again"
            ) from error

    def _content(self) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return (self.path / MANIFEST).read_bytes()
        return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock for publishing. Raises SinkUnavailable if another writer holds it for LOCK_SECONDS."""
        try:
            with FileLock(self.path / LOCK, timeout=LOCK_SECONDS):
                yield
        except Timeout as error:
            raise SinkUnavailable(
                f"{self} is locked: another writer has published for more than {LOCK_SECONDS:g} s", may_return=True
            ) from error

    def replace(self, previous: Manifest | None, manifest: Manifest, written: Sequence[Path]) -> None:
        """Publishes a manifest in place of the previous one. Needs the lock.

        - `written`: the staged files and directories, which are not synced yet.
        """
        left = {file.name for file in previous.files} if previous is not None else set()
        for name in left - {file.name for file in manifest.files}:
            os.utime(self.data / name)  # its hour begins now: readers may have just read the previous manifest
        path = self.path / f"{MANIFEST}.new"
        path.write_bytes(encode_manifest(manifest))
        # concurrently: a disk flushes once for all simultaneous requests (2 ms; one after another 7 ms)
        list(self._syncing.map(_sync, [*written, self.data, path]))
        path.replace(self.path / MANIFEST)
        (self.path / PUBLISHED).touch()  # after the manifest: a writer that dies in between has published
        _sync(self.path)

    def retract(self, manifest: Manifest) -> None:
        """Removes this manifest, so that nothing is published. Needs the lock."""
        for file in manifest.files:
            with contextlib.suppress(FileNotFoundError):  # removed by hand
                os.utime(self.data / file.name)
        (self.path / PUBLISHED).unlink(missing_ok=True)
        (self.path / MANIFEST).unlink()
        _sync(self.path)

    def sweep(self, manifest: Manifest | None) -> None:
        """Removes old files that the manifest does not have, replaced or left by dead writers. Needs the lock."""
        published = {file.name for file in manifest.files} if manifest is not None else set()
        for path in [*self.data.glob("*"), *self.data.glob("*/*")]:
            old = path.stat().st_mtime < time.time() - KEPT_SECONDS if path.exists() else False
            name = path.relative_to(self.data).as_posix()
            if not old or name in published or any(other.startswith(f"{name}/") for other in published):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def close(self) -> None:
        """Ends the threads that sync files."""
        self._syncing.shutdown()


def digest_end(path: Path) -> str:
    """Returns the digest of a Parquet file's length and end; "" if the file is not a Parquet file.

    The end is the footer, or 64 KiB if that is more.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 8, 0))
        length, magic = int.from_bytes(file.read(4), "little"), file.read(4)
        if magic != b"PAR1" or length + 8 > size:
            return ""
        file.seek(max(size - max(length + 8, _END_BYTES), 0))
        return hashlib.blake2b(size.to_bytes(8, "little") + file.read(), digest_size=16).hexdigest()


@contextlib.contextmanager
def reported(target: object) -> Iterator[None]:
    """Raises SinkUnavailable, with the target and the remedy, for errors of the file system."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check its disk")
        reason = os.strerror(error.errno) if error.errno else str(error)  # pyarrow's text repeats it
        raise SinkUnavailable(f"{target}: {reason}: {remedy}, then start again") from error


def _sync(path: Path) -> None:
    """Makes a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
