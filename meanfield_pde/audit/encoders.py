"""BERT-class encoders from `.safetensors` files, by the names that their families use.

    BERT, RoBERTa, MiniLM    encoder.layer.N.attention.self.{query, key, value}, .output.dense
    DistilBERT               transformer.layer.N.attention.q_lin, k_lin, v_lin, out_lin

with or without a prefix, such as "bert.". The weights of a linear map are stored as out x in, and
the heads share its rows (query, key, value) or columns (output) out among them. `config.json`,
beside the file, says how many heads there are. The package `safetensors` reads the file; nothing
in such a file is code, and nothing is downloaded.

In it eight bytes give the length of a header in JSON, which says where in the rest of the file each
tensor stands; each is read when it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.audit.weights import Encoder, HeadWeights, default_beta, read_npz
from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import check_file

# The header of a large model has a few hundred kilobytes; the format allows no more than this.
LARGEST_HEADER = 100_000_000
INSTALL_HINT = "pip install 'meanfield_pde[audit]'"
_REAL = ("F16", "F32", "F64")
_LEFT_OUT = (
    "biases are left out: that of the keys drops out of the softmax, those of queries, values and "
    "outputs add a constant to the scores and to V m",
    "the gain of the layer norm enters beta by its norm only, its bias not at all",
)


@dataclass(frozen=True)
class _Family:
    """The names of one family of encoders, after the prefix; {} is the number of the layer."""

    name: str
    layer: str
    query: str
    key: str
    value: str
    output: str
    norm: str  # of the layer before
    config: tuple[str, str, str]  # layers, heads, dimension


_FAMILIES = (
    _Family(
        "BERT",
        "encoder.layer.{}.",
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "output.LayerNorm",
        ("num_hidden_layers", "num_attention_heads", "hidden_size"),
    ),
    _Family(
        "DistilBERT",
        "transformer.layer.{}.",
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
        "output_layer_norm",
        ("n_layers", "n_heads", "dim"),
    ),
)
_FIRST_NORM = "embeddings.LayerNorm"


def read_encoder(path: str | Path) -> Encoder:
    """The weights of an encoder: an `.npz`, a `.safetensors` file, or a folder with one."""
    path = Path(path)
    if path.is_dir():
        return _read_safetensors(_file_of_folder(path))
    check_file(path, f"{path}: no such file of weights")
    if path.suffix.lower() == ".npz":
        return read_npz(path)
    if path.suffix.lower() == ".safetensors":
        return _read_safetensors(path)
    raise InputError(
        f"{path}: weights must be .npz or .safetensors, or a folder with model.safetensors; "
        "files of pickled objects (.bin, .pt) are not opened, save them as safetensors"
    )


def _file_of_folder(folder: Path) -> Path:
    found = sorted(folder.glob("*.safetensors"))
    named = [path for path in found if path.name == "model.safetensors"]
    if named or len(found) == 1:
        return (named or found)[0]
    if not found:
        raise InputError(f"{folder}: there is no .safetensors file in this folder")
    names = ", ".join(path.name for path in found[:4])
    raise InputError(f"{folder}: there are {len(found)} .safetensors files ({names}); name one")


def _read_safetensors(path: Path) -> Encoder:
    if importlib.util.find_spec("safetensors") is None:
        raise InputError(
            f"{path}: reading .safetensors needs the package safetensors: {INSTALL_HINT}"
        )
    check_file(path, f"{path}: no such file of weights")  # in a folder it may be anything
    check_header(path)
    shapes = Tensors(path).shapes()
    family, prefix, layers = _recognise(shapes, path)
    config = _config(path)
    heads = _whole(config, family.config[1], path)
    d = _shape(shapes, f"{prefix}{family.layer.format(0)}{family.query}.weight", path)[1]
    for key, found in ((family.config[0], layers), (family.config[2], d)):
        if key in config and config[key] != found:
            raise InputError(
                f"{path}: config.json says {key} = {config[key]!r}, the file has {found}"
            )
    if config.get("is_decoder") is True:
        raise InputError(f"{path}: config.json says is_decoder = true; encoders only are audited")
    head_dimension = _check_shapes(shapes, family, prefix, layers, heads, path)
    notes = list(_LEFT_OUT)
    if config.get("position_embedding_type", "absolute") != "absolute":
        notes.append("the relative positions in its scores are left out")
    gains = [_gain_name(shapes, family, prefix, layer) for layer in range(layers)]
    if None in gains:
        notes.append("where the layer norm before a layer was not found its gain is taken as 1")

    def read(layer: int) -> list[HeadWeights]:
        tensors = Tensors(path)
        begin = prefix + family.layer.format(layer)
        parts = (family.query, family.key, family.value, family.output)
        query, key, value, output = (tensors.read(f"{begin}{part}.weight") for part in parts)
        gain = gains[layer]
        squared = float(d) if gain is None else float((tensors.read(gain) ** 2).sum())
        beta = default_beta(squared, head_dimension)
        if not np.isfinite(beta):
            raise InputError(f"{path}: {gain} has entries that are not finite")
        rows = [slice(h * head_dimension, (h + 1) * head_dimension) for h in range(heads)]
        return [HeadWeights(query[r], key[r], value[r], output[:, r], beta) for r in rows]

    return Encoder(
        path,
        "RoBERTa" if config.get("model_type") in ("roberta", "xlm-roberta") else family.name,
        layers,
        heads,
        d,
        head_dimension,
        "beta = |x|^2 / sqrt(d_head), |x|^2 the sum of the squared gains of the layer norm before "
        "the layer: the mean squared norm of its tokens, without the bias",
        tuple(notes),
        read=read,
        positions=_positions(config),
    )


def _recognise(
    shapes: dict[str, tuple[tuple[int, ...], str]], path: Path
) -> tuple[_Family, str, int]:
    """The family, the prefix of its names, and the number of layers."""
    for family in _FAMILIES:
        pattern = re.escape(family.layer).replace(r"\{\}", r"(\d{1,6})") + re.escape(family.query)
        found = [
            match
            for name in shapes
            if (match := re.fullmatch(rf"((?:\w+\.)*){pattern}\.weight", name))
        ]
        if not found:
            continue
        prefixes = sorted({match[1] for match in found}, key=len)
        numbers = {int(match[2]) for match in found if match[1] == prefixes[0]}
        if numbers != set(range(len(numbers))):
            missing = min(set(range(max(numbers) + 1)) - numbers)
            raise InputError(f"{path}: layer {missing} is missing")
        return family, prefixes[0], len(numbers)
    example = ", ".join(sorted(shapes)[:2]) or "none"
    raise InputError(
        f"{path}: no attention of a BERT-class encoder found (names such as "
        f"'encoder.layer.0.attention.self.query.weight' or "
        f"'transformer.layer.0.attention.q_lin.weight'); its tensors are {example:.120}, ..."
    )


def _check_shapes(
    shapes: dict[str, tuple[tuple[int, ...], str]],
    family: _Family,
    prefix: str,
    layers: int,
    heads: int,
    path: Path,
) -> int:
    """Refuse matrices that do not fit together; the dimension of a head."""
    width, d = _shape(shapes, f"{prefix}{family.layer.format(0)}{family.query}.weight", path)
    if width == 0 or d < 2 or width % heads:
        raise InputError(
            f"{path}: config.json says {heads} heads, which do not divide the {width} rows of the "
            "queries"
        )
    for layer in range(layers):
        begin = prefix + family.layer.format(layer)
        for part in (family.query, family.key, family.value, family.output):
            expected = (d, width) if part == family.output else (width, d)
            found = _shape(shapes, f"{begin}{part}.weight", path)
            if found != expected:
                raise InputError(
                    f"{path}: {begin}{part}.weight must be {expected[0]} x {expected[1]}, "
                    f"got {found[0]} x {found[1]}"
                )
    return width // heads


def _shape(
    shapes: dict[str, tuple[tuple[int, ...], str]], name: str, path: Path
) -> tuple[int, int]:
    """Rows and columns of a matrix; InputError if it is missing or none."""
    if name not in shapes:
        raise InputError(f"{path}: {name} is missing")
    shape, kind = shapes[name]
    if len(shape) != 2:
        raise InputError(f"{path}: {name} must be a matrix, got shape {list(shape)}")
    if kind not in _REAL:
        raise InputError(
            f"{path}: {name} has numbers of type {kind}; save the model as F32 (or F16, F64)"
        )
    return shape[0], shape[1]


def _gain_name(
    shapes: dict[str, tuple[tuple[int, ...], str]], family: _Family, prefix: str, layer: int
) -> str | None:
    """The gain of the layer norm that makes the tokens of a layer."""
    norm = f"{family.layer.format(layer - 1)}{family.norm}" if layer else _FIRST_NORM
    for ending in ("weight", "gamma"):
        name = f"{prefix}{norm}.{ending}"
        if name in shapes and len(shapes[name][0]) == 1 and shapes[name][1] in _REAL:
            return name
    return None


def _config(path: Path) -> dict[str, Any]:
    file = path.parent / "config.json"
    check_file(file, f"{path}: config.json is not beside it, which says how many heads a layer has")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: not readable as JSON ({error!s:.200})") from None
    if not isinstance(config, dict):
        raise InputError(f"{file}: must be a JSON object")
    return config


def _whole(config: dict[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise InputError(
            f"{path.parent / 'config.json'}: {key} must be a whole number >= 1, got {value!r:.60}"
        )
    return value


def _positions(config: dict[str, Any]) -> int | None:
    value = config.get("max_position_embeddings")
    return value if type(value) is int and value > 1 else None


class Tensors:
    """The tensors of a file, by name; every fault of the file is an InputError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._module = importlib.import_module("safetensors")

    def shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of each tensor; the data are not read."""
        try:
            with self._module.safe_open(str(self._path), framework="np") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                return {n: (tuple(s.get_shape()), str(s.get_dtype())) for n, s in slices.items()}
        except (self._module.SafetensorError, OSError, ValueError, TypeError) as error:
            raise self._unreadable(error) from None

    def read(self, name: str) -> np.ndarray:
        """A tensor in double precision."""
        try:
            with self._module.safe_open(str(self._path), framework="np") as file:
                return np.asarray(file.get_tensor(name)).astype(float)
        except (self._module.SafetensorError, OSError, ValueError, TypeError) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> InputError:
        reason = " ".join(str(error).split())[:200]
        return InputError(f"{self._path}: not a readable .safetensors file ({reason})")


def check_header(path: Path) -> None:
    """Refuse a header that does not fit in the file, before anybody makes room for it."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            first = file.read(1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if size < 10 or length > min(size - 8, LARGEST_HEADER) or first != b"{":
        raise InputError(
            f"{path}: not a readable .safetensors file (damaged, cut off, or of another format: "
            f"its header would have {length} bytes, the file has {size})"
        )
