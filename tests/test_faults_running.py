"""A model file that changes, goes, or cannot be read while it is open."""
import errno
import os
import time

import pytest
from faults_gguf import tiny

from pyengine.errors import FileChangedError
from pyengine.gguf import GGUF
from pyengine.mapped import MappedFile, open_regular
from pyengine.metadata import Metadata


@pytest.fixture
def path(tmp_path):
    p = tmp_path / "m.gguf"
    p.write_bytes(tiny())
    os.utime(p, ns=(1, time.time_ns() - 10**10))  # older than any later write, however coarse the clock
    return p


def change(path, how):
    if how == "cut":
        os.truncate(path, 4096)
    elif how == "grown":
        with open(path, "ab") as f:
            f.write(b"x")
    elif how == "overwritten":
        with open(path, "r+b") as f:
            f.seek(-40, os.SEEK_END)
            f.write(b"x")
    elif how == "emptied":
        os.truncate(path, 0)


CHANGES = ["cut", "grown", "overwritten", "emptied"]


@pytest.mark.parametrize("how", CHANGES)
def test_a_mapped_file_that_changes_is_noticed(path, how):
    """137, 138: size and modification time, once per step; the header's values stay what was checked."""
    with GGUF(path) as g:
        g.check_unchanged()
        tokens = list(g.get_strings("tokenizer.ggml.tokens"))
        change(path, how)
        with pytest.raises(FileChangedError, match="changed while in use") as caught:
            g.check_unchanged()
        assert str(path) in str(caught.value) and isinstance(caught.value, OSError)
        assert g.get_int("llama.block_count") == 2 and list(g.get_strings("tokenizer.ggml.tokens")) == tokens


@pytest.mark.parametrize("how", CHANGES)
def test_private_memory_does_not_change(path, how):
    with GGUF(path, mmap=False) as g:
        change(path, how)
        g.check_unchanged()
        assert g.files[0].buffer == tiny()


@pytest.mark.parametrize("use_mmap", [True, False])
def test_deleted_or_replaced_goes_on_with_the_old_one(path, use_mmap):
    """139: the name is not the file."""
    with GGUF(path, mmap=use_mmap) as g:
        other = path.with_suffix(".new")
        other.write_bytes(b"something else")
        os.replace(other, path)
        g.check_unchanged()
        assert g.files[0].buffer == tiny()
    path.write_bytes(tiny())
    with GGUF(path, mmap=use_mmap) as g:
        path.unlink()
        g.check_unchanged()
        assert g.files[0].buffer == tiny()


@pytest.mark.parametrize("use_mmap", [True, False])
@pytest.mark.parametrize("how", CHANGES)
def test_changed_between_check_and_map(path, how, use_mmap):
    """What was checked must be what is used: a file that changes while it is opened is refused."""
    fd, info = open_regular(path)
    change(path, how)
    with pytest.raises(FileChangedError):
        MappedFile(str(path), fd, info, use_mmap)
    with pytest.raises(OSError):
        os.fstat(fd)  # closed


def test_a_read_that_fails_is_an_os_error():
    """140: page 0 of the own memory cannot be read, by the kernel's word."""
    fd = os.open("/proc/self/mem", os.O_RDONLY)
    with pytest.raises(OSError) as caught:
        Metadata("disk.gguf", fd, 4096)
    os.close(fd)
    assert caught.value.errno == errno.EIO and caught.value.filename == "disk.gguf"
