"""The command: files that are damaged, foreign or wrong give one line and exit code 2."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from meanfield_pde import Attention, simulate_tokens
from meanfield_pde.case.file import read_case
from meanfield_pde.cli import main as cli
from meanfield_pde.theory.projection_limit import ProjectionLimit
from tests.conftest import Main

LAYER = "encoder.layer.0.attention."


def encoder(folder: Path, **changes: np.ndarray | None) -> Path:
    """A small BERT in a file, with tensors replaced or left out."""
    generator = np.random.default_rng(0)
    names = [f"{LAYER}self.{part}.weight" for part in ("query", "key", "value")]
    names.append(f"{LAYER}output.dense.weight")
    tensors = {name: generator.standard_normal((6, 6)).astype(np.float32) for name in names}
    for part, tensor in changes.items():
        name = next(one for one in names if part in one)
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")
    config = {"num_attention_heads": 2, "hidden_size": 6, "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "model.safetensors"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def huge_header(path: Path) -> None:
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])


def broken_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20:30] = b"\xff" * 10
    path.write_bytes(data)


def no_config(path: Path) -> None:
    (path.parent / "config.json").unlink()


def config(**changes: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        file = path.parent / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "not a readable .safetensors file"),
        (huge_header, "not a readable .safetensors file"),
        (broken_header, "not a readable .safetensors file"),
        (lambda path: path.write_bytes(b""), "not a readable .safetensors file"),
        (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(99)), "not a readable .safetensors"),
        (no_config, "config.json is not beside it"),
        (lambda path: (path.parent / "config.json").write_text("{"), "not readable as JSON"),
        (lambda path: (path.parent / "config.json").write_text("[1]"), "must be a JSON object"),
        (config(num_attention_heads=4), "4 heads, which do not divide the 6 rows"),
        (config(num_attention_heads="2"), "num_attention_heads must be a whole number"),
        (config(hidden_size=7), "hidden_size = 7, the file has 6"),
        (config(is_decoder=True), "encoders only"),
        (lambda path: encoder(path.parent, value=None), "value.weight is missing"),
        (lambda path: encoder(path.parent, key=np.ones((6, 5), "f4")), "must be 6 x 6, got 6 x 5"),
        (lambda path: encoder(path.parent, key=np.ones(6, "f4")), "must be a matrix"),
        (lambda path: encoder(path.parent, key=np.ones((6, 6), "i4")), "numbers of type I32"),
        (
            lambda path: encoder(path.parent, key=np.full((6, 6), np.nan)),
            "must have finite entries",
        ),
        (lambda path: save_file({"h.0.attn.c_attn": np.ones(2)}, path), "no attention of a BERT"),
    ],
)
def test_wrong_safetensors(
    main: Main, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    path = encoder(tmp_path)
    damage(path)
    code, error = main("audit", path, "--output", tmp_path / "out")
    assert code == 2
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "out").exists()


THIN = np.ones((2, 3, 4, 8))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"query": THIN, "key": THIN}, "'value' is missing"),
        ({"query": THIN, "key": THIN, "value": THIN}, "value must be 8 x 8"),
        ({"query": THIN[0, 0, 0], "key": THIN, "value": THIN}, "must be a matrix for each head"),
        ({"query": THIN, "key": THIN[..., :7], "value": THIN}, "key must be 4 x 8"),
        ({"query": THIN, "key": THIN, "value": np.ones((2, 8, 8))}, "numbers of layers or heads"),
        ({"query": THIN * 1j, "key": THIN, "value": THIN}, "query must hold real numbers"),
        (
            {"query": THIN, "key": THIN, "value": np.ones((8, 8)), "beta": np.array(-1.0)},
            "beta must be numbers >= 0",
        ),
        (
            {"query": THIN, "key": THIN, "value": np.ones((8, 8)), "beta": np.ones(5)},
            "layers x heads",
        ),
        (
            {"query": THIN * 1e200, "key": THIN, "value": np.ones((8, 8))},
            "must have its largest entry from",
        ),
        ({"query": THIN * 5e-324, "key": THIN, "value": np.ones((8, 8))}, "or zero, got"),
        (
            {"query": THIN * np.inf, "key": THIN, "value": np.ones((8, 8))},
            "must have finite entries",
        ),
    ],
)
def test_wrong_npz(main: Main, tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "w.npz", **arrays)
    code, error = main("audit", tmp_path / "w.npz", "--output", tmp_path / "out")
    assert code == 2
    assert error.count("\n") == 1
    assert message in error


def test_wrong_options(main: Main, tmp_path: Path) -> None:
    path = encoder(tmp_path)
    for arguments, message in (
        (("--export-case", 0, 2), "head must be from 0 to 1"),
        (("--export-case", 1, 0), "layer must be from 0 to 0"),
        (("--baseline", path), "give both"),
        (("--directions", 2), "--export-case only"),
        (("--count", 1), "at least 2"),
        (("--tolerance", "0"), "between 0 and pi"),
        (("--tokens", path), "not an .npz file"),
    ):
        code, error = main("audit", path, *arguments, "--output", tmp_path / "out")
        assert code == 2
        assert message in error
        assert error.count("\n") == 1
    for name in ("none.npz", "model.bin"):
        if name == "model.bin":
            (tmp_path / name).write_bytes(b"\x80\x04")
        assert main("audit", tmp_path / name)[0] == 2


HEAD = Attention(np.eye(4), np.eye(4), np.diag([1.0, 0.1, 0.1, 0.1]), 4.0)
TURNED = Attention(HEAD.query, HEAD.key, np.diag([0.1, 1.0, 0.1, 0.1]), 4.0)


def audited(main: Main, capfd: pytest.CaptureFixture[str], folder: Path, *options: object) -> str:
    """What `audit` prints of an encoder with HEAD in all layers."""
    np.savez(folder / "w.npz", query=HEAD.query, key=HEAD.key, value=HEAD.value, beta=HEAD.beta)
    with pytest.raises(SystemExit) as ended:
        cli.main(["audit", *map(str, (folder / "w.npz", *options, "--output", folder / "out"))])
    assert not ended.value.code
    return capfd.readouterr().out


def tokens_of(folder: Path, name: str, seed: int, *, turned: bool = False) -> Path:
    """Tokens of nine layers of HEAD; if turned, of TURNED from layer 4 to layer 6."""
    x = np.random.default_rng(seed).normal((1.5, 0, 0, 0), size=(60, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    clouds = [x]
    for layer in range(8):
        head = TURNED if turned and 4 <= layer <= 6 else HEAD
        clouds.append(simulate_tokens(clouds[-1], head, 1.0, tolerance=1e-5).tokens[-1])
    np.savez(folder / name, tokens=np.array(clouds))
    return folder / name


def test_nothing_is_said_to_deviate_where_no_layer_does(
    main: Main, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The last line says so, where nothing changes any more, and whose the lifetimes are."""
    clean, other = (tokens_of(tmp_path, f"{i}.npz", i) for i in range(2))
    lines = audited(
        main, capfd, tmp_path, "--tokens", clean, "--baseline", other, "--tolerance", 0.1
    ).splitlines()
    assert not [line for line in lines if line.startswith(("deviates", "drift"))]
    found = json.loads((tmp_path / "out" / "audit.json").read_text())["tokens"]
    assert found["flagged"] == found["drifted"] == []
    depth = found["stop_depth"]
    assert 2 < depth < 8
    assert lines[-1].startswith(
        f"no layer deviates, none drifts from the baseline; from layer {depth} on nothing changes "
        "by more than 0.1 rad; predicted lifetime, over the longest-lived head with a limit of "
        "each layer until then: not within the layers (layer 0 head 0) for the density, "
    )
    assert found["lifetime_depth"] == "inf"
    assert found["lifetime_heads"] == [[0, 0]]


def test_layers_that_deviate_are_named(
    main: Main, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    clean = tokens_of(tmp_path, "clean.npz", 0)
    wrong = tokens_of(tmp_path, "wrong.npz", 0, turned=True)
    text = audited(main, capfd, tmp_path, "--tokens", wrong, "--baseline", clean)
    found = json.loads((tmp_path / "out" / "audit.json").read_text())["tokens"]
    flagged, drifted = (", ".join(map(str, found[name])) for name in ("flagged", "drifted"))
    assert flagged
    assert drifted
    assert f"\ndeviates: layer {flagged}; the heads leave more than 10% of the step" in text
    assert f"\ndrift: layer {drifted}; p <= 0.001 against the baseline\n" in text
    last = text.splitlines()[-1]
    assert last.startswith("up to the last layer tokens change by more than 0.01 rad; predicted")


@pytest.mark.painted
def test_what_the_folder_holds(main: Main, tmp_path: Path) -> None:
    """Table, JSON, subspaces, figure; and a case with tokens that `limit` and `run` accept."""
    generator = np.random.default_rng(0)
    matrices = [np.eye(5) + 0.1 * generator.standard_normal((5, 5)) for _ in range(2)]
    value = np.diag([2.0, 1.2, 0.5, 0.1, -0.3])
    np.savez(tmp_path / "w.npz", query=matrices[0], key=matrices[1], value=value, beta=9.0)
    np.savez(tmp_path / "t.npz", tokens=generator.standard_normal((4, 20, 5)))
    out = tmp_path / "out"
    where = ("--tokens", tmp_path / "t.npz", "--export-case", 0, 0, "--output", out)
    assert main("audit", tmp_path / "w.npz", *where)[0] == 0
    found = json.loads((out / "audit.json").read_text())
    (head,) = found["heads"]
    with (out / "heads.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["gap"]) == head["gap"]
    assert len(found["tokens"]["layers"]) == 4
    A = value @ matrices[1].T @ matrices[0]
    with np.load(out / "subspaces.npz") as bases:
        e = bases["layer-0-head-0"][:, 0]
    assert A @ e == pytest.approx(head["value"] * e, abs=1e-12)
    case = read_case(out / "layer-0-head-0" / "case.toml")
    limit = ProjectionLimit(case.attention)
    assert limit.gap == pytest.approx(head["gap"], rel=1e-9)
    assert case.time.until == 3
    assert case.initial.points.shape == (20, 2)
    assert (out / "figures" / "audit.png").stat().st_size > 10_000
