"""Token files: what is written is read back, and what is refused."""

from __future__ import annotations

import logging
import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meanfield_pde.attention.head import read_weights
from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import to_sphere
from meanfield_pde.tokens.cloud import TokenCloud, read_tokens, write_tokens
from meanfield_pde.wasserstein.measure import Measure


def sphere_points(*shape: int) -> np.ndarray:
    points = np.random.default_rng(3).normal(size=shape)
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".CSV"])
@pytest.mark.parametrize("shape", [(4, 5, 2), (3, 7, 3), (1, 2, 2)])
def test_round_trip(tmp_path: Path, suffix: str, shape: tuple[int, int, int]) -> None:
    cloud = TokenCloud(np.arange(shape[0]) / 3, sphere_points(*shape))
    write_tokens(tmp_path / f"tokens{suffix}", cloud)
    read = read_tokens(tmp_path / f"tokens{suffix}")
    np.testing.assert_array_equal(read.times, cloud.times)
    np.testing.assert_array_equal(read.tokens, cloud.tokens)
    assert read.masses is read.query is read.beta is None
    assert read.note == ""
    assert read.dimension == shape[2]
    assert [path.name for path in tmp_path.iterdir()] == [f"tokens{suffix}"]


def test_round_trip_with_everything(tmp_path: Path) -> None:
    weights = {name: np.arange(4.0).reshape(2, 2) + i for i, name in enumerate("qkv")}
    cloud = TokenCloud(
        np.array([0.0, 1.0]),
        sphere_points(2, 3, 2),
        masses=np.array([1.0, 0.0, 2.0]),
        query=weights["q"],
        key=weights["k"],
        value=weights["v"],
        beta=math.inf,
    )
    write_tokens(tmp_path / "tokens.npz", cloud)
    read = read_tokens(str(tmp_path / "tokens.npz"))
    for name in ("masses", "query", "key", "value"):
        np.testing.assert_array_equal(getattr(read, name), getattr(cloud, name))
    assert read.beta == math.inf
    with pytest.raises(InputError, match="cannot hold masses, query, key, value, beta"):
        write_tokens(tmp_path / "tokens.csv", cloud)


def test_a_single_time(tmp_path: Path) -> None:
    points = sphere_points(6, 3)
    np.savez(tmp_path / "tokens.npz", tokens=points)
    read = read_tokens(tmp_path / "tokens.npz")
    np.testing.assert_array_equal(read.tokens, points[None])
    assert read.times.tolist() == [0.0]
    (tmp_path / "tokens.csv").write_text("token,x,y\n7,1,0\n2,0,1\n")
    read = read_tokens(tmp_path / "tokens.csv")
    assert read.tokens.tolist() == [[[0, 1], [1, 0]]]
    assert read.times.tolist() == [0.0]


def test_csv_rows_in_any_order_and_a_numpy_header(tmp_path: Path) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text("# time, token, x, y\n1,1,0,-1\n0,0,1,0\n\n1,0,0,1\n0,1,-1,0\n")
    read = read_tokens(path)
    assert read.times.tolist() == [0, 1]
    assert read.tokens.tolist() == [[[1, 0], [-1, 0]], [[0, 1], [0, -1]]]


def test_tokens_almost_on_the_sphere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = sphere_points(2, 50, 3).astype(np.float32)
    np.savez(tmp_path / "tokens.npz", times=[0, 1], tokens=tokens, extra=1)
    with caplog.at_level(logging.INFO, logger="meanfield_pde"):
        read = read_tokens(tmp_path / "tokens.npz")
    np.testing.assert_allclose(np.linalg.norm(read.tokens, axis=2), 1, rtol=1e-15)
    assert "arrays not used: extra" in read.note
    assert "of 100 positions were off the unit sphere by up to" in read.note
    assert read.note in caplog.text
    again = TokenCloud(read.times, read.tokens)
    np.testing.assert_array_equal(again.tokens, read.tokens)
    assert again.note == ""


ON = [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("arrays", "fragment"),
    [
        ({"times": [0]}, "the array 'tokens' is missing; found ['times']"),
        ({"tokens": [ON, ON]}, "the array 'times' is missing"),
        ({"times": [0, 1], "tokens": [ON]}, "times must be 1 numbers"),
        ({"times": [0, 0], "tokens": [ON, ON]}, "increasing, got [0.0, 0.0] at index 0"),
        ({"times": [0, 2, 1], "tokens": [ON] * 3}, "increasing, got [2.0, 1.0] at index 1"),
        ({"times": [0, math.nan], "tokens": [ON, ON]}, "finite"),
        ({"times": [math.inf], "tokens": [ON]}, "finite"),
        ({"times": ["a"], "tokens": [ON]}, "times must be an array of real numbers"),
        ({"tokens": [1.0, 0.0]}, "the array 'times' is missing"),
        ({"times": 0.0, "tokens": [1.0, 0.0]}, "shape (T, N, d) or (N, d)"),
        ({"tokens": np.zeros((0, 2))}, "shape (T, N, d)"),
        ({"tokens": [[1.0], [1.0]]}, "d >= 2"),
        ({"tokens": [[1j, 0]]}, "real numbers, got type complex128"),
        ({"tokens": [[True, False]]}, "real numbers, got type bool"),
        (
            {"times": [0, 1.5], "tokens": [ON, [[1, 0], [0.6, 0.9]]]},
            "token 1 at time 1.5 is not on the unit sphere: [0.6, 0.9] has length 1.08166538 (1 of",
        ),
        ({"tokens": [[1, 0], [math.nan, 1]]}, "token 1 at time 0 is not on the unit sphere"),
        ({"tokens": [[1 + 2e-6, 0]]}, "token 0 at time 0 is not on the unit sphere"),
        ({"tokens": ON, "masses": [1]}, "masses must be 2 numbers"),
        ({"tokens": ON, "masses": [1, -2]}, "masses must be >= 0, got -2 for token 1"),
        ({"tokens": ON, "masses": [0, 0]}, "must not all be zero"),
        ({"tokens": ON, "beta": -1}, "beta must be one number >= 0, got -1"),
        ({"tokens": ON, "beta": math.nan}, "beta must be one number >= 0"),
        ({"tokens": ON, "beta": [1, 2]}, "beta must be one number >= 0"),
        ({"tokens": ON, "query": "a"}, "query must be an array of real numbers"),
        ({"tokens": ON, "query": np.eye(3)}, "query must be k x 2, got shape (3, 3)"),
        ({"tokens": ON, "key": [1, 2]}, "key must be k x 2, got shape (2,)"),
        ({"tokens": ON, "value": np.ones((1, 2))}, "value must be 2 x 2, got shape (1, 2)"),
        ({"tokens": ON, "value": np.full((2, 2), np.nan)}, "value must have finite entries"),
        ({"tokens": np.array([{}])}, "Object arrays cannot be loaded"),
    ],
)
def test_npz_refused(tmp_path: Path, arrays: dict[str, Any], fragment: str) -> None:
    path = tmp_path / "tokens.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError) as caught:
        read_tokens(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "the header must be time,token,x,y"),
        ("0,0,1,0\n", "the header must be time,token,x,y"),
        ("time,tokn,x,y\n0,0,1,0\n", "got 'time,tokn,x,y'"),
        ("time,token,x,y\n", "there are no tokens below the header"),
        ("time,token,x,y\n0,0,1,0\n0,1,a,1\n", "row 2 below the header: x is 'a', not a number"),
        ("time,token,x,y\n0,0,1,0\n0,1,1\n", "row 2 below the header has 3 values, the header 4"),
        ("time,token,x,y,z\n0,0,1,0\n", "the header has 5 columns, the rows 4"),
        ("time,token,x,y\n0,0,1,0\nnan,1,1,0\n", "row 2 below the header has a value"),
        ("time,token,x,y\n0,0,1,0\n0,0,1,0\n", "token 0 is there 2 times at time 0"),
        ("time,token,x,y\n0,0,1,0\n0,1,1,0\n2,0,1,0\n", "token 1 is missing at time 2"),
        ("time,token,x,y\n0,0,1,0\n0,1,3,4\n", "token 1 at time 0 is not on the unit sphere"),
        ("time,token,x,y\n0,0,1,0\n0,0.5,0,1\n", "row 2 below the header: token must be a whole"),
        ("time,token,x,y\n0,-1,1,0\n", "token must be a whole number >= 0, got -1"),
        ("time,token,x,y\n0,1e300,1,0\n", "token must be a whole number >= 0, got 1e+300"),
        ("\xff", "the header must be"),
    ],
)
def test_csv_refused(tmp_path: Path, text: str, fragment: str) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_tokens(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_something_else(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "trapped",)

    good = tmp_path / "good.npz"
    write_tokens(good, TokenCloud(np.zeros(1), sphere_points(400, 3)))
    contents = {
        "empty.npz": b"",
        "text.npz": b"time,token,x,y",
        "pickle.npz": pickle.dumps(Trap()),
        "short.npz": good.read_bytes()[:-40],
        "damaged.npz": good.read_bytes().replace(b"NUMPY", b"YPMUN")[:200]
        + b"\x55" * 2000
        + good.read_bytes()[2200:],
        "binary.csv": b"\xff\xfe\x00",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=r"not (an|a readable)"):
            read_tokens(tmp_path / name)
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize("read", [read_weights, Measure.read, read_tokens])
@pytest.mark.parametrize("damage", ["empty", "truncated", "npy", "missing"])
def test_every_reader_of_npz_files_names_a_damaged_one_once(
    tmp_path: Path, read: Callable[[Path], Any], damage: str
) -> None:
    path = tmp_path / "damaged.npz"
    np.savez(path, **dict.fromkeys(("query", "key", "value", "points"), np.eye(2)), masses=[1, 1])
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        case "npy":
            with path.open("wb") as file:
                np.save(file, np.eye(2))
        case "missing":
            path.unlink()
    with pytest.raises(InputError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.count(path.name) == 1
    assert "\n" not in message


@pytest.mark.parametrize("read", [read_weights, Measure.read, read_tokens])
def test_bytes_damaged_inside_an_archive(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    path = tmp_path / "damaged.npz"
    np.savez(path, query=np.eye(2))
    content = path.read_bytes()
    path.write_bytes(content.replace(np.eye(2).tobytes(), np.full((2, 2), 7.0).tobytes()))
    with pytest.raises(InputError, match=r"not a readable \.npz file .*Bad CRC-32") as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).count(path.name) == 1
    assert "\n" not in str(caught.value)


def test_a_header_that_is_an_expression(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10**9,)}\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tokens.npy", b"\x93NUMPY\x01\x00" + bytes([len(header), 0]) + header)
    with pytest.raises(InputError, match=r"the header of tokens\.npy is not a shape and a type"):
        read_tokens(path)


def test_names_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such token file"):
        read_tokens(tmp_path / "tokens.npz")
    with pytest.raises(InputError, match=r"must end in \.npz or \.csv, got '\.txt'"):
        read_tokens(tmp_path / "tokens.txt")
    with pytest.raises(InputError, match=r"must end in \.npz or \.csv, got '\.h5'"):
        write_tokens(tmp_path / "tokens.h5", TokenCloud(np.zeros(1), sphere_points(4, 3)))
    assert not list(tmp_path.iterdir())


def test_to_sphere_leaves_good_points_alone() -> None:
    points = sphere_points(100, 3)
    same, note = to_sphere(points, str)
    assert same is points
    assert note == ""


@pytest.mark.parametrize("shape", ["(True, 50, 2)", "(0, 1000000000000000000000, 2)", "(-1, 2)"])
def test_headers_that_no_array_has_are_refused(shape: str, tmp_path: Path) -> None:
    described = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    header = b"\x93NUMPY\x01\x00" + len(described).to_bytes(2, "little") + described.encode()
    with zipfile.ZipFile(tmp_path / "tokens.npz", "w") as file:
        file.writestr("tokens.npy", header + bytes(800))
    with pytest.raises(InputError, match=r"tokens\.npz: not a readable"):
        read_tokens(tmp_path / "tokens.npz")
