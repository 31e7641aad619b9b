"""One file of a model in memory: opened safely, mapped or read, watched for change.

Knows nothing of GGUF's contents. Imported by metadata and gguf.
"""
import mmap
import os
import stat
import sys
import threading

from pyengine.errors import ClosedError, FileChangedError, GGUFError, MemoryBudgetError, escaped
from pyengine.native import address_of

_KINDS = [
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
]

_READ_PIECE = 1 << 26  # 64 MB a call: a signal is noticed between pieces
_AHEAD_PIECE = 1 << 20  # the kernel caps what one call asks for; 128 KB and 8 MB pieces were no faster
_PROBES = 64
_ANONYMOUS = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def shown(path: str | bytes) -> str:
    """A path for messages: escaped, its end kept when it is long."""
    text = escaped(os.fsdecode(path))
    return text if len(text) <= 200 else "..." + text[-200:]


def open_regular(path: str | bytes) -> tuple[int, os.stat_result]:
    """A descriptor of a regular, non-empty file. Never waits (a named pipe would) nor takes over a terminal."""
    flags = os.O_RDONLY
    for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY", "O_NOINHERIT"):  # the last two are Windows's
        flags |= getattr(os, name, 0)
    try:
        fd = os.open(path, flags)
    except ValueError as e:  # a NUL inside
        raise GGUFError(f"{shown(path)}: {e}") from None
    except OSError:
        try:
            mode = os.stat(path).st_mode
        except OSError:
            mode = stat.S_IFREG
        _require_regular(path, mode)  # a socket, or a device without a driver: say that
        raise
    try:
        info = os.fstat(fd)
        _require_regular(path, info.st_mode)
        if info.st_size == 0:
            raise GGUFError(f"{shown(path)}: is empty (0 bytes), expected a GGUF file", offset=0)
    except BaseException:
        os.close(fd)
        raise
    return fd, info


def _require_regular(path: str | bytes, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((text for test, text in _KINDS if test(mode)), "not a regular file")
    raise GGUFError(f"{shown(path)}: is {kind}, expected a GGUF file")


class MappedFile:
    """The whole file as read-only memory: `address`, `buffer`, `size`.

    Mapped (shared with other processes, pages come when touched), or with
    use_mmap=False read into private memory, after which the file may change.
    Owns the descriptor from the moment of the call, also when it raises.
    """

    def __init__(self, path: str | bytes, fd: int, info: os.stat_result, use_mmap: bool):
        self.path = path
        self.size = info.st_size
        self._identity = _identity(info)
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._buffer: memoryview | None = None
        try:
            self._map = self._mapped() if use_mmap else self._private()
            self.check_unchanged()  # since the header was read
            if not use_mmap:
                self._close_fd()
            self._buffer = memoryview(self._map).toreadonly()
            self._address = address_of(self._map)
        except BaseException:
            self.close()
            raise

    def _mapped(self) -> mmap.mmap:
        try:
            return mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)
        except (OSError, OverflowError, ValueError) as e:
            self.check_unchanged()  # a file cut meanwhile cannot be mapped at its old size
            raise MemoryBudgetError(f"{shown(self.path)}: cannot map {self.size} bytes: {self._why(e)}") from None

    def _private(self) -> mmap.mmap:
        try:
            memory = mmap.mmap(-1, self.size, **_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as e:
            raise MemoryBudgetError(f"{shown(self.path)}: cannot allocate {self.size} bytes: {self._why(e)}") from None
        done = 0
        with memoryview(memory) as view:
            while done < self.size:
                with view[done : done + _READ_PIECE] as piece:
                    n = _read_into(self._fd, piece, done)
                if n == 0:
                    raise FileChangedError(f"{shown(self.path)}: was cut to {done} bytes while it was read, "
                                           f"expected {self.size}")
                done += n
        return memory

    def _why(self, e: Exception) -> str:
        """A 32-bit process runs out of addresses, whatever memory there is."""
        if self.size > sys.maxsize:
            return (f"a 32-bit process can map at most {sys.maxsize} bytes of a file; "
                    "a smaller model or quantization, or a 64-bit system is needed")
        return f"{e}" if sys.maxsize > 2**32 else f"{e} (a 32-bit process has 2 to 3 GB of addresses in all)"

    @property
    def address(self) -> int:
        """Where the first byte lies in memory; page aligned."""
        self._require_open()
        return self._address

    @property
    def buffer(self) -> memoryview:
        """The whole file, read-only."""
        self._require_open()
        return self._buffer

    def read_ahead(self) -> threading.Thread | None:
        """Asks the kernel for a mapped file that is not in memory, in file order, from a thread of its own.

        Kernels read weights in far rows, which the kernel's own read-ahead does not follow: an 808 MB file that was
        dropped from the page cache came in 880 to 1190 ms, so in 530 to 660. Pins nothing; ends with the file.
        Does nothing, in 0.1 ms, where the file is in memory or the system cannot say.
        """
        if self._fd < 0 or not hasattr(os, "posix_fadvise") or self.in_memory() is not False:
            return None
        try:
            fd = os.dup(self._fd)
        except OSError:  # no descriptor left: the file comes as it is touched
            return None
        thread = threading.Thread(target=self._ahead, args=(fd,), name="pyengine-ahead", daemon=True)
        thread.start()
        return thread

    def in_memory(self) -> bool | None:
        """Are a few bytes all over the file in memory? None: the system does not say."""
        flag = getattr(os, "RWF_NOWAIT", None)
        if self._fd < 0 or flag is None or not hasattr(os, "preadv"):
            return None
        try:
            for i in range(_PROBES):
                os.preadv(self._fd, [bytearray(1)], self.size * i // _PROBES, flag)
        except BlockingIOError:
            return False
        except OSError:  # a file system that does not know the flag
            return None
        return True

    def _ahead(self, fd: int) -> None:
        try:
            for start in range(0, self.size, _AHEAD_PIECE):
                if self._fd < 0:  # closed
                    break
                os.posix_fadvise(fd, start, _AHEAD_PIECE, os.POSIX_FADV_WILLNEED)
        except OSError:
            pass  # advice only
        finally:
            os.close(fd)

    def _require_open(self) -> None:
        if self._map is None:
            raise ClosedError(f"{shown(self.path)}: is closed")

    def check_unchanged(self) -> None:
        """Raise FileChangedError if the open file's size or modification time is not what it was when opened.

        One fstat. Renaming or deleting the file changes nothing here, and private memory cannot change.
        """
        if self._fd < 0:
            return
        now = _identity(os.fstat(self._fd))
        if now != self._identity:
            raise FileChangedError(f"{shown(self.path)}: changed while in use "
                                   f"(found {now[0]} bytes, {self._identity[0]} when opened)")

    def _close_fd(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Give the memory back; views that others still hold keep it until they go."""
        self._close_fd()
        memory, self._map = self._map, None
        view, self._buffer = self._buffer, None
        try:
            if view is not None:
                view.release()
            if memory is not None:
                memory.close()
        except BufferError:
            pass  # an array over it is alive; the mapping ends with the last one


def _read_into(fd: int, piece: memoryview, at: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [piece], at)
    os.lseek(fd, at, os.SEEK_SET)      # Windows: nobody else reads by this descriptor
    got = os.read(fd, len(piece))
    piece[: len(got)] = got
    return len(got)


def _identity(info: os.stat_result) -> tuple[int, ...]:
    return info.st_size, info.st_mtime_ns, info.st_ino, info.st_dev
