"""Stores of saved densities: the same in memory and in a file, which survives what kills a run."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

import h5py
import numpy as np
import pytest

from meanfield_pde.errors import InputError, StorageError
from meanfield_pde.history.file_store import FileStore
from meanfield_pde.history.store import LOG_MASSES, MASSES, ZERO_MASSES, MemoryStore, Store

CONSTANTS = {"points": np.eye(3), "limit/masses": np.ones(2)}


def arrays(index: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(index)
    return {MASSES: generator.random(3) * 10.0**-index, ZERO_MASSES: generator.random(3)}


def filled(store: Store, count: int) -> Store:
    for index in range(count):
        store.append(0.1 * index, arrays(index))
    return store


def assert_holds(store: Store, count: int) -> None:
    assert len(store) == count
    np.testing.assert_array_equal(store.times, [0.1 * index for index in range(count)])
    assert set(store.names()) == {MASSES, ZERO_MASSES}
    for index in reversed(range(count)):
        for name, expected in arrays(index).items():
            np.testing.assert_array_equal(store.read(index, name), expected)


def test_log_masses_that_say_no_more_than_masses_take_no_memory() -> None:
    store, masses = MemoryStore(), np.array([0.25, 0.0, 0.75])
    with np.errstate(divide="ignore"):
        logs = np.log(masses)
    wider = np.array([logs[0], -800.0, logs[2]])
    for given in (logs, wider):
        store.append(0.0, {MASSES: masses, LOG_MASSES: given})
    assert store.names() == [MASSES, LOG_MASSES]
    np.testing.assert_array_equal(store.read(0, LOG_MASSES), logs)
    assert store.read(0, LOG_MASSES) is not logs
    assert store.read(1, LOG_MASSES) is wider


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "density.h5"


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_what_is_kept_is_read_back(kind: str, count: int, path: Path) -> None:
    store = filled(MemoryStore() if kind == "memory" else FileStore(path), count)
    assert_holds(store, count)
    np.testing.assert_array_equal(store.read(-1), arrays(count - 1)[MASSES])
    store.finish()
    assert_holds(store, count)
    store.truncate(1)
    assert_holds(store, 1)
    filled_again = [store.append(0.1 * index, arrays(index)) for index in range(1, count)]
    assert len(filled_again) == count - 1
    assert_holds(store, count)


def test_a_finished_file_is_plain_hdf5(path: Path) -> None:
    store = FileStore(path, constants=CONSTANTS, attributes={"case": "text"})
    filled(store, 5).finish()
    assert [one.name for one in path.parent.iterdir()] == ["density.h5"]
    with h5py.File(path) as file:
        assert file["masses"].shape == file["zero_temperature/masses"].shape == (5, 3)
        np.testing.assert_array_equal(file["masses"][3], arrays(3)[MASSES])
        np.testing.assert_array_equal(file["limit/masses"], 1)
        assert file.attrs["case"] == "text"
    assert_holds(FileStore.open(path), 5)


def test_the_file_is_written_ever_more_rarely(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written for n saved times is of the order n, not n^2: log2(n) files."""
    written: list[int] = []
    write = FileStore._write

    def counted(self: FileStore, target: Path) -> None:
        written.append(len(self))
        write(self, target)

    monkeypatch.setattr(FileStore, "_write", counted)
    filled(FileStore(path), 200)
    assert len(written) <= 8
    assert sum(written) < 2 * 200 + 8


def cut(journal: Path) -> None:
    os.truncate(journal, journal.stat().st_size - 5)


def garble(journal: Path) -> None:
    content = bytearray(journal.read_bytes())
    content[-20] ^= 1
    journal.write_bytes(content)


def add_rubbish(journal: Path) -> None:
    journal.write_bytes(journal.read_bytes() + b"density\n" + bytes(30))


@pytest.mark.parametrize(("damage", "left"), [(cut, 5), (garble, 5), (add_rubbish, 6)])
def test_a_torn_journal_ends_where_it_is_torn(
    damage: Callable[[Path], None], left: int, path: Path
) -> None:
    """As a program leaves it that is killed while it writes; what is appended then is whole."""
    filled(FileStore(path), 6)  # three in the file, three in the journal
    damage(path.with_suffix(".journal"))
    store = FileStore.open(path)
    assert_holds(store, left)
    for index in range(left, 9):
        store.append(0.1 * index, arrays(index))
    assert_holds(store, 9)
    assert_holds(FileStore.open(path), 9)


HEADERS: dict[str, object] = {
    "no object": [1, 2],
    "no shapes": {"time": 0.6},
    "no time": {"shapes": {"masses": [3]}},
    "shapes of text": {"time": 0.6, "shapes": "masses"},
    "a shape of text": {"time": 0.6, "shapes": {"masses": "3"}},
    "a negative shape": {"time": 0.6, "shapes": {"masses": [-3]}},
    "a shape of fractions": {"time": 0.6, "shapes": {"masses": [3.0]}},
    "a shape of 1e18": {"time": 0.6, "shapes": {"masses": [10**18]}},
    "a product of 1e24": {"time": 0.6, "shapes": {"masses": [10**8, 10**8, 10**8]}},
    "a time of text": {"time": "0.6", "shapes": {"masses": [3]}},
    "a time of 1e400": {"time": 10**400, "shapes": {"masses": [3]}},
    "another array": {"time": 0.6, "shapes": {"../masses": [3], "masses": [3]}},
    "a row of text": {"time": 0.6, "shapes": {"masses": [3]}, "row": {"mass": "1"}},
}


@pytest.mark.parametrize("header", [*HEADERS, "longer than the file", "nested deeply"])
def test_headers_that_no_run_writes(header: str, path: Path) -> None:
    """With a checksum that is right; no field of them is used."""
    filled(FileStore(path), 6)
    journal = path.with_suffix(".journal")
    text = json.dumps(HEADERS.get(header, {})).encode()
    if header == "nested deeply":
        text = b"[" * 100_000
    length = 2**63 if header == "longer than the file" else len(text)
    record = b"density\n" + struct.pack("<Q", length) + text + np.ones(3).tobytes()
    journal.write_bytes(journal.read_bytes() + record + struct.pack("<Q", zlib.crc32(record)))
    assert_holds(FileStore.open(path), 6)


def test_read_while_a_run_goes_on(path: Path) -> None:
    """What was in the journal is in the file by now, and the journal holds other times."""
    writing = filled(FileStore(path), 6)
    reading = FileStore.open(path)
    for index in range(6, 14):
        writing.append(0.1 * index, arrays(index))
        assert_holds(reading, 6)


def test_of_a_damaged_file_what_is_whole_is_read(path: Path) -> None:
    """A block of 64 KB is checked when something in it is read, and HDF5 does not see it before."""
    store = FileStore(path)
    for index in range(8):
        store.append(0.1 * index, {MASSES: np.full(20_000, 1.0 + index)})
    store.finish()
    with h5py.File(path) as file:
        begin = file[MASSES].id.get_offset() + 5 * 8 * 20_000 + 80_000
    content = bytearray(path.read_bytes())
    content[begin] ^= 1
    path.write_bytes(content)
    store = FileStore.open(path)
    for index in (0, 1, 2, 3, 7):
        np.testing.assert_array_equal(store.read(index), 1.0 + index)
    with pytest.raises(InputError, match=r"density\.h5: .* \(its checksum is wrong, in bytes"):
        store.read(5)
    for cut in (1, 40, 64, 65, 100_000):
        path.write_bytes(content[:-cut])
        with pytest.raises(InputError, match=r"not a readable density file \(its checksums are"):
            FileStore.open(path)


def test_what_is_damaged_is_not_copied_into_the_next_file(path: Path) -> None:
    store = filled(FileStore(path), 4)
    content = bytearray(path.read_bytes())
    place = content.index(arrays(1)[MASSES].tobytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"density\.h5: not a readable density file"):
        store.finish()
    assert path.read_bytes() == content


def moving_arrays(index: int) -> dict[str, np.ndarray]:
    """On as many cells as the mesh happens to have; patches come and go."""
    generator, cells = np.random.default_rng(index), 3 + index % 4
    return {
        MASSES: generator.random(cells),
        "points": np.tile([0.6, 0.8], (cells, 1)) * generator.choice([-1.0, 1.0], (cells, 2)),
        "patches/places": generator.random((index % 3, 2)),
    }


@pytest.mark.parametrize("left", [0, 2, 5, 7, 9])
def test_cells_that_move_are_read_back_whatever_is_forgotten(left: int, path: Path) -> None:
    """Of 9 times 7 are in the file."""
    store = FileStore(path)
    for index in range(9):
        store.append(0.1 * index, moving_arrays(index))
    store.truncate(left)
    for index in range(left, 12):
        store.append(0.1 * index, moving_arrays(index))
    store.finish()
    for one in (store, FileStore.open(path)):
        for index in range(12):
            for name, expected in moving_arrays(index).items():
                np.testing.assert_array_equal(one.read(index, name), expected)


def test_killed_between_the_file_and_the_journal(path: Path) -> None:
    """The journal is still there, though its times are in the file."""
    store = filled(FileStore(path), 6)
    journal = path.with_suffix(".journal")
    content = journal.read_bytes()
    store.finish()
    journal.write_bytes(content)
    again = FileStore.open(path)
    assert_holds(again, 6)
    again.append(0.1 * 6, arrays(6))
    assert_holds(again, 7)
    assert_holds(FileStore.open(path), 7)


def test_what_cannot_be_written_leaves_what_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(FileStore(path), 6)

    pwrite = os.pwrite

    def full(handle: int, content: bytes, position: int) -> int:
        pwrite(handle, content[:10], position)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StorageError, match="No space"):
            store.append(0.1 * 6, arrays(6))
    assert_holds(FileStore.open(path), 6)


def test_a_file_of_something_else_is_refused(path: Path) -> None:
    path.write_bytes(b"not HDF5")
    with pytest.raises(InputError, match=r"density\.h5: not a readable density file"):
        FileStore.open(path)
    path.unlink()
    with h5py.File(path, "w") as file:
        file["times"], file["masses"] = np.arange(3.0), np.ones((2, 3))
    with pytest.raises(InputError, match="masses must be times x cells"):
        FileStore.open(path)


@pytest.mark.parallel([1, 2])
def test_no_rank_but_the_first_writes() -> None:
    comm = MPI.COMM_WORLD
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    path = Path(folder) / "density.h5"
    store = filled(FileStore(path, comm), 6)
    time.sleep(0.3 * comm.rank)  # the first rank does not put a journal away that others read
    assert_holds(store, 6)  # every rank reads on its own
    store.finish()
    assert_holds(store, 6)
    assert not any(isinstance(value, np.ndarray) for value in vars(store).values())
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)
