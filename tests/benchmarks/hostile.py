# ruff: noqa: E501 (tables of inputs, a line each)
"""Hostile input of every kind, to the command line, to Python, and from the surroundings.

    python -m tests.benchmarks.hostile [--quick]

500 inputs, made at random from a seed: wild values at every key of a case file, made-up arrays in
files of weights, tokens and measures, damaged meshes, and arguments. There are calls of Python
functions with wrong types and shapes, and surroundings: locale, closed streams, pipes and folders
where files should be. Counted as a fault: the name of an exception in a message; an exception of
Python's own from a function; an exit code other than 0, 1 and 2; more than 60 seconds of a run that
has not said how long it takes; a value that was accepted and is another in the `case.toml` written.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import meanfield_pde as package
from meanfield_pde.cli import main as cli
from tests.benchmarks.fuzz import cost_shown
from tests.benchmarks.tables import Table, options, present
from tests.problems import CIRCLE, SPHERE

MOST_SECONDS = 60  # for a command: those that are right take a few
SAID = "seconds without a word"
LONG = 1e5  # steps that a run has to announce to be allowed to take longer
COUNTS = {"cases": 190, "weights": 60, "tokens": 60, "meshes": 30, "arguments": 50, "calls": 80,
          "surroundings": 30}  # fmt: skip
NAME = re.compile(r"\b\w*(?:Error|Exception|SystemExit|Interrupt):")
FORMULAS = ("exp(-1/(x*x))", "exp(50*x)", "exp(700*x)", "1e-300 + x*x", "1e300*(1+x)", "x*x*y*y",
            "exp(-1e4*(x-0.8)**2)", "1 + cos(200*x)", "sqrt(1-x)", "1e-320", "(x+1)**40", "abs(y)")  # fmt: skip
WILD: list[Any] = [
    math.nan, math.inf, -math.inf, 1e308, -1e308, 1e300, 5e-324, 1e-300, -1, 0, 1, 2, 2**31, 2**63,
    10**400, 1e12, 1e6, 0.5, True, False, "", "x", "inf", "ü\udcff"[0], "a" * 300, "../..", [], [[]],
    [1], [1.0, "a"], [[1, 2], [3]], [[[1.0]]], {}, {"a": 1}, [1e308, 1e308], [0.0, 0.0],
    [[1e308, 0.0], [0.0, 1e308]], [[5e-324, 0.0], [0.0, 5e-324]], [[0.0, 0.0], [0.0, 0.0]],
    [[0.0, 1.0], [-1.0, 0.0]], "1/x", "exp(800*x)", "sqrt(x)", "(" * 200, "x**x**x**x", "1e400",
    "0*x", "exp(-1/(x*x))", "10min", "0s",
]  # fmt: skip
KEYS = [
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.beta",
    "attention.normalise",
    "attention.weights",
    "attention.layer_duration",
    "attention.heads",
    "mesh.kind",
    "mesh.cells",
    "mesh.grade",
    "adapt.tolerance",
    "adapt.max_cells",
    "mesh.path",
    "noise.strength",
    "perceptron.weights_in",
    "perceptron.bias_in",
    "perceptron.weights_out",
    "perceptron.activation",
    "initial.kind",
    "initial.density",
    "initial.components",
    "initial.path",
    "solver.scheme",
    "solver.tolerance",
    "solver.log_masses",
    "time.until",
    "time.save_at",
    "time.save_every",
    "compare.limit",
    "compare.zero_temperature",
    "compare.p",
    "compare.cost",
    "compare.time_limit",
    "output.directory",
    "output.fields",
    "output.checkpoint_every",
]


class TooLongError(BaseException):
    """Something that does not end."""


def within(work: Callable[[], str]) -> str:
    """What is wrong with what work did; that it did not end, if it did not."""

    def expired(number: int, frame: object) -> None:
        raise TooLongError

    signal.signal(signal.SIGALRM, expired)
    signal.alarm(MOST_SECONDS)
    try:
        return work()
    except TooLongError:
        return f"{MOST_SECONDS} {SAID}"
    finally:
        signal.alarm(0)


def judged(code: int, shown: str) -> str:
    """What is wrong with how a command ended."""
    if code not in (0, 1, 2):
        return f"exit {code}: {shown[-200:]}"
    if "Traceback" in shown or "please report" in shown or (code and NAME.search(shown)):
        return f"exit {code}: {shown[-300:]}"
    said = [line for line in shown.splitlines() if line.startswith("meanfield-pde: ")]
    return f"{len(said)} lines: {shown[-200:]}" if code and len(said) != 1 else ""


def command(*arguments: str) -> tuple[str, int]:
    """What is wrong with what a command did, and its exit code."""
    shown, code = io.StringIO(), 0

    def run() -> str:
        nonlocal code
        with (
            cost_shown(shown),
            contextlib.redirect_stderr(shown),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            try:
                code = cli._run(list(arguments))
            except SystemExit as ended:
                code = int(ended.code or 0)
        return judged(code, shown.getvalue())

    said = within(run)
    announced = re.search(r", (\S+) of them to the end", shown.getvalue())
    if said.endswith(SAID) and announced and float(announced[1]) > LONG:
        return "", -1
    return said, code


def toml(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + "}"
    return repr(value)


# Values of the right type, and of a size that hardly anybody has tried.
SIZES: dict[str, tuple[Any, ...]] = {
    "attention.beta": (0, 1e-300, 1e-30, 1e-8, 0.3, 50, 1e3, 1e6, 1e12, 1e30, 1e100, 1e300, "inf"),
    "mesh.cells": (20, 21, 37, 999, 3000, 10**7, 10**12),
    "mesh.grade": (1, 1.0001, 2, 30, 1e4),
    "adapt.tolerance": (0.9, 0.1, 1e-2, 1e-3, 1e-8, 1e-300),
    "adapt.max_cells": (1, 100, 1000, 10**5, 10**12),
    "noise.strength": (0, 1e-300, 1e-30, 1e-12, 1e-3, 1, 50, 1e3, 1e6, 1e12, 1e30, 1e300),
    "initial.density": FORMULAS,
    "time.until": (0, 1e-300, 1e-30, 1e-9, 0.05, 0.3),
    "solver.tolerance": (1e-2, 1e-6, 1e-14),
}


def sized(name: str, d: int) -> Any:
    """A value for a key of the right type."""
    if name in SIZES:
        return random.choice(SIZES[name])
    scale = 10.0 ** random.choice([-320, -100, -60, -8, 0, 0, 1, 3, 8, 60, 100, 300])
    return [[scale * random.choice([0.0, 1.0, -1.0, 0.5]) for _ in range(d)] for _ in range(d)]


def cases() -> str:
    """One wild value, or two, in a case of the circle or the sphere, run for a short time."""
    text = random.choice([CIRCLE.replace("200", "40"), CIRCLE.replace("200", "40"), SPHERE])
    document = tomllib.loads(text.replace("until = 5.0", "until = 0.05").replace("[1.0]", "[0.01]"))
    document["time"].pop("save_every", None)
    right_type = random.random() < 0.6
    keys = [*SIZES, "attention.query", "attention.value"] if right_type else KEYS
    changed = random.sample(keys, random.choice([1, 1, 2]))
    for name in changed:
        section, key = name.split(".")
        d = len(tomllib.loads(text)["attention"]["value"])
        wild = sized(name, d) if right_type else random.choice(WILD)
        document.setdefault(section, {})[key] = wild
    if "output.directory" in changed and document["output"]["directory"] != "a" * 300:
        document["output"].pop("directory")
    content = "\n".join(
        f"[{name}]\n" + "\n".join(f"{key} = {toml(value)}" for key, value in table.items())
        for name, table in document.items()
    )
    Path("wild.toml").write_text(content, encoding="utf-8", errors="replace")
    shutil.rmtree("out", ignore_errors=True)
    action = random.choice(["run"] * 4 + ["limit"])
    said, code = command(action, "wild.toml", "--output", "out")
    wilds = {name: document[name.split(".")[0]].get(name.split(".")[1]) for name in changed}
    if not said and code == 0 and Path("out/case.toml").is_file():
        written = tomllib.loads(Path("out/case.toml").read_text(encoding="utf-8"))
        for name, value in wilds.items():
            section, key = name.split(".")
            found = written.get(section, {}).get(key, value)
            if isinstance(value, int | float) and not isinstance(found, str) and found != value:
                said = f"altered: {name} = {found!r}"
    return f"{said} {wilds}" if said else ""


def wild_array(shape: tuple[int, ...]) -> np.ndarray:
    """An array of about this shape with something wrong, or unusual, in it."""
    array: np.ndarray = np.random.default_rng(random.randrange(10**6)).normal(size=shape)
    match random.randrange(10):
        case 0:
            array = array.astype(random.choice(["c16", "U3", "?", "i1", "f2", "S2", "M8[s]", "O"]))
        case 1:
            array = array[..., :-1]
        case 2:
            array = array[None]
        case 3:
            array.flat[0] = random.choice([math.nan, math.inf, 1e308, -1e308, 5e-324])
        case 4:
            array = array * random.choice([0.0, 5e-324, 1e-300, 1e300, 1e160])
        case 5:
            array = array[:0]
        case 6:
            array = np.asfortranarray(array).astype(">f8")
        case 7:
            array = np.array(random.choice([0.0, math.nan, 1e308]))
        case 8:
            array = np.zeros((0, 2**40, 2))
        case _:
            array = np.full(shape, random.choice([1.0, 5e-324, -0.0]))
    return array


def header(shape: str) -> bytes:
    """An .npy file whose header says anything."""
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text = text.ljust(118 - len(b"\x93NUMPY\x01\x00vv")) + b"\n"
    body = bytes(random.choice([0, 8, 800]))
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def archive(path: str, arrays: dict[str, np.ndarray]) -> None:
    """Write an .npz, now and then with a made-up header, no member, or bytes changed."""
    np.savez(path, **arrays)
    name = random.choice(list(arrays))
    match random.randrange(4):
        case 0:
            shapes = ["(True, 50, 2)", "(0, 10**21, 2)", "(0, 1000000000000000000000, 2)", "(-1, 2)",
                      "(2.0, 2)", "'ab'", "(2,)", "()", "(9223372036854775807, 2)", "None"]  # fmt: skip
            with zipfile.ZipFile(path, "w") as file:
                for one, array in arrays.items():
                    stream = io.BytesIO()
                    np.save(stream, array)
                    right = stream.getvalue()
                    file.writestr(
                        one + ".npy", header(random.choice(shapes)) if one == name else right
                    )
        case 1:
            content = bytearray(Path(path).read_bytes())
            for _ in range(random.randint(1, 8)):
                content[random.randrange(len(content))] = random.randrange(256)
            Path(path).write_bytes(content[: random.choice([len(content), len(content) // 2])])
        case _:
            pass


def weights() -> str:
    """Files of weights, audited, or read by a case."""
    d = random.choice([2, 3, 4])
    arrays = {name: np.eye(d) for name in ("query", "key", "value")}
    arrays[random.choice(list(arrays))] = wild_array((d, d))
    if random.random() < 0.3:
        arrays["beta"] = wild_array((1, 1))
    with contextlib.suppress(FileNotFoundError):
        os.unlink("w.npz")
    archive("w.npz", arrays)
    if random.random() < 0.7:
        return command("audit", "w.npz", "--output", "audited")[0]
    Path("w.toml").write_text(
        re.sub(r"query.*\nkey.*\nvalue.*\n", 'weights = "w.npz"\n', CIRCLE).replace("200", "40")
    )
    return command("run", "w.toml", "--until", "0.01", "--output", "o", "--overwrite", "--quiet")[0]


def tokens() -> str:
    """Tokens and measures, in files."""
    points = wild_array((50, 2)) if random.random() < 0.7 else np.tile([0.6, 0.8], (50, 1))
    arrays = {"points": points, "masses": np.ones(50), "tokens": points, "times": np.zeros(1)}
    if random.random() < 0.5:
        arrays[random.choice(["masses", "times"])] = wild_array((50,))
    if random.random() < 0.2:
        rows = random.choice(
            ["time,token,x,y\n0,0,1,0\n", "token,x,y\n0,nan,1\n", "x\n", "\0", "", "token,x,y\n1,1,0\n",
             "token,x,y\n0,1,0\n0,1,0\n", "time,token,x,y\n1e400,0,1,0\n", "token,x,y\n0,1e999,0\n",
             "token,x,y\n" + "0," * 10**5 + "\n", "token;x;y\n0;1;0\n", "token,x,y\n0," + "1" * 10**6]
        )  # fmt: skip
        Path("t.csv").write_text(rows)
        return command("compare", "right", "t.csv", "--output", "compared")[0]
    archive("t.npz", arrays)
    name = random.choice(["wasserstein", "wasserstein", "compare"])
    if name == "compare":
        return command("compare", "right", "t.npz", "--output", "compared")[0]
    cost = random.choice(["geodesic", "chordal"])
    return command("wasserstein", "a.npz", "t.npz", "--cost", cost)[0]


def meshes() -> str:
    """A mesh file with bytes changed, cut, or numbers replaced."""
    for name in ("mesh.xdmf", "mesh.h5"):
        shutil.copy(f"right.{name.split('.')[1]}", name)
    name = random.choice(["mesh.xdmf", "mesh.xdmf", "mesh.h5"])
    content = bytearray(Path(name).read_bytes().replace(b"right.h5", b"mesh.h5"))
    if name == "mesh.xdmf" and random.random() < 0.6:
        text = content.decode()
        places = list(re.finditer(r"\d+|[A-Za-z]+", text))
        place = random.choice(places)
        new = random.choice(
            ["0", "-1", "9" * 30, "nan", "x", "", "../../etc/passwd", "&a;", "True"]
        )
        content = bytearray((text[: place.start()] + new + text[place.end() :]).encode())
    else:
        for _ in range(random.randint(1, 20)):
            content[random.randrange(len(content))] = random.randrange(256)
    Path(name).write_bytes(content)
    if name == "mesh.h5":
        Path("mesh.xdmf").write_bytes(
            Path("right.xdmf").read_bytes().replace(b"right.h5", b"mesh.h5")
        )
    text = CIRCLE.replace('kind = "circle"\ncells = 200', 'kind = "file"\npath = "mesh.xdmf"')
    Path("m.toml").write_text(text)
    return command("run", "m.toml", "--until", "0", "--output", "m", "--overwrite", "--quiet")[0]


LINES = (
    "run c.toml --until {}", "run c.toml --output {}", "limit {}", "limit c.toml --output {}",
    "wasserstein a.npz {}", "wasserstein a.npz a.npz --time-limit {}", "plot right --times {}",
    "tokens c.toml --count {} --until 0", "tokens c.toml --count 3 --seed {} --until 0",
    "mesh sphere --cells {} --output m.xdmf", "mesh circle --cells 9 --output {}", "plot {}",
    "mesh circle --cells 9 --grade {} --grade-to 1,0 --output m.xdmf", "compare right {}",
    "mesh circle --cells 9 --grade 2 --grade-to {} --output m.xdmf", "audit {}", "demo {}",
    "audit w2.npz --count {}", "audit w2.npz --tolerance {}", "audit w2.npz --export-case {} 0",
    "lifetime c.toml --beta {} --until 0.1 --output l", "sweep c.toml --beta 5 {} --output s",
    "transition c.toml --strength {} 1 --output tr", "compare right a2.npz --layer-step {}",
    "run c.toml --until 0 --output lg --overwrite --log {}", "run c.toml -log_view {}", "{}",
)  # fmt: skip
ODD = [
    "nan",
    "inf",
    "-inf",
    "1e308",
    "5e-324",
    "0",
    "-1",
    "1e999",
    "2147483648",
    "0x10",
    "a,b",
    "1,,2",
    "nan,1",
    ".",
    "/",
    "pipe",
    "folder",
    "loop",
]
ODD += ["loop/a", "1" * 400, "n" * 300, "ü", "\udcff.toml", "", " ", "a.npz", "/dev/null"]


def arguments() -> str:
    """An odd argument at an odd place."""
    line, odd = random.choice(LINES), random.choice(ODD)
    said = command(*[part.format(odd) for part in line.split()])[0]
    return f"{said} ({line}: {odd[:30]!r})" if said else ""


def odd_values() -> list[Any]:
    """Values of the wrong type, of the wrong shape, or out of range."""
    masked = np.ma.masked_less(np.array([[0.6, 0.8], [1.0, 0.0]]), 0.5)
    return [
        None, "40", math.nan, math.inf, -1, 0, 10**400, True, object(), [], {}, [[1], [1, 2]], "x",
        np.zeros(0), np.ones((2, 2, 2)), np.array(["a"]), 1j, b"x", np.eye(2) * 1e308, masked,
        np.array([None, 1]), lambda points: np.ones((len(points), 2)), lambda points: "a",
        lambda points: None, np.full((3, 2), math.nan), 1e300, 5e-324, Path("nowhere"), "\0", 2.5,
    ]  # fmt: skip


def calls() -> str:
    """A function of Python's interface with one argument replaced."""
    attention = package.Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), 5.0)
    mesh = package.circle_mesh(20)
    points = np.array([[1.0, 0.0], [0.6, 0.8]])
    measure = package.Measure(points, np.ones(2))
    solved = {"attention": attention, "mesh": mesh, "initial": "1 + 0.5*x", "until": 0.01, "noise": 0.0,
              "save_at": (), "save_every": None, "scheme": "muscl", "tolerance": 1e-10, "threads": 1,
              "compare": None, "log_masses": None, "adapt": None, "observers": ()}  # fmt: skip
    head = {
        "query": np.eye(2),
        "key": np.eye(2),
        "value": np.eye(2),
        "beta": 1.0,
        "normalise": True,
    }
    perceptron = {"weights_in": np.eye(2), "weights_out": np.eye(2), "bias_in": np.zeros(2),
                  "bias_out": np.zeros(2), "activation": "relu"}  # fmt: skip
    moved = {"tokens": points, "attention": attention, "until": 0.1, "start": 0.0, "step": 0.05,
             "residual": False, "noise": 0.0, "seed": 0, "tolerance": 1e-8, "save_at": (),
             "masses": None}  # fmt: skip
    functions: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (package.solve, solved), (package.solve, solved), (package.solve, solved),
        (package.Attention, head), (package.Perceptron, perceptron),
        (package.Heads, {"heads": [attention], "perceptron": None}),
        (package.Layers, {"attentions": [attention], "duration": 1.0}),
        (package.Measure, {"points": points, "masses": np.ones(2), "spread": None}),
        (package.circle_mesh, {"cells": 9, "grade": 2.0, "axis": [1.0, 0.0]}),
        (package.sphere_mesh, {"cells": 20, "grade": 1.5, "axis": [1.0, 0.0, 0.0]}),
        (package.wasserstein, {"mu": measure, "nu": measure, "p": 1, "cost": "chordal",
                               "method": "auto", "rtol": 1e-10, "time_limit": 5.0}),
        (package.simulate_tokens, moved), (package.simulate_tokens, moved),
        (package.sample_tokens, {"initial": "1", "count": 5, "seed": 0, "dimension": 2}),
        (package.ProjectionLimit, {"attention": attention}),
        (package.push_forward, {"limit": package.ProjectionLimit(attention),
                                "cells": np.array([[[1.0, 0.0], [0.6, 0.8]]]), "content": np.ones(1)}),
        (package.Component, {"weight": 1.0, "concentration": 2.0, "mean": (1.0, 0.0)}),
        (package.VonMises, {"components": (package.Component(1.0, 1.0, (1.0, 0.0)),)}),
        (package.ExpressionDensity, {"expression": "1 + x"}),
        (package.Tokens, {"points": points, "masses": None}),
        (package.TokenCloud, {"times": np.zeros(1), "tokens": points, "masses": None, "query": None,
                              "beta": 1.0}),
        (package.CompareCase, {"limit": True, "zero_temperature": False, "p": (1,), "cost": "chordal",
                               "time_limit": 1.0}),
        (package.read_case, {"path": "c.toml", "until": None, "output": None}),
        (package.read_mesh, {"path": "right.xdmf"}), (package.read_tokens, {"path": "a2.npz"}),
        (package.read_result, {"directory": "right"}),
        (package.write_tokens, {"path": "new.npz", "cloud": package.read_tokens("a2.npz")}),
        (package.compare_tokens, {"result": package.read_result("right"),
                                  "cloud": package.read_tokens("a2.npz"), "level": 0.01, "seed": 0}),
    ]  # fmt: skip
    function, right = random.choice(functions)
    name = random.choice(list(right))
    odd = random.choice(odd_values())
    given = right | {name: odd}

    def call() -> str:
        try:
            function(**given)
        except package.MeanfieldError as error:
            return "" if str(error) and not NAME.search(str(error)) else f"says {error}"
        except Exception as error:  # whatever is not the package's own is what is looked for
            return f"{type(error).__name__}: {error}"
        accepted_mask = isinstance(odd, np.ma.MaskedArray)
        return "a masked array is taken" if accepted_mask and odd.mask.any() else ""

    with contextlib.redirect_stderr(io.StringIO()), np.errstate(all="ignore"):
        said = within(call)
    return f"{function.__name__}({name}={odd!r:.60}): {said:.150}" if said else ""


SURROUNDINGS = (
    "limit c.toml 2>&-", "limit c.toml >&-", "limit c.toml <&- >&- 2>&-", "limit c.toml >/dev/full",
    "run c.toml --until 0 --output e1 2>&-", "run c.toml --until 0 --output e2 2>/dev/full",
    "limit pipe", "limit folder", "limit loop", "audit pipes", "audit pipe.safetensors",
    "wasserstein pipe.npz a.npz", "compare right pipe.csv", "compare right folder",
    "run c.toml --until 0 --output pipe", "run c.toml --until 0 --output loop/a",
    "run c.toml --until 0 --output e3 --log pipe", "run c.toml --until 0 --output e4 --log folder",
    "limit c.toml --output folder", "limit c.toml --output loop", "mesh circle --cells 9 --output loop.xdmf",
    "limit $'bad\\xff.toml'", "run c.toml --until 0 --output $'\\xff'", "limit c.toml | head -c 1",
    "run c.toml --until 0 --output e5 --log /dev/full", "wasserstein a.npz a.npz | true",
    "run c.toml --until 0 --output /dev/null/a", "plot pipe", "audit w2.npz --output pipe",
    "tokens c.toml --count 3 --until 0 --output folder/.npz", "run c.toml --until 0 --output 'ün ï'",
    "run pipe-case.toml --until 0 --output e6", "run dir-case.toml --until 0 --output e7",
)  # fmt: skip
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {}, {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"MEANFIELD_PDE_THREADS": "x"}, {"HOME": "/nowhere", "TMPDIR": "/nowhere"}, {"TERM": "dumb"},
)  # fmt: skip


def surroundings() -> str:
    """A command as a process of its own, in odd surroundings."""
    line, odd = random.choice(SURROUNDINGS), random.choice(ENVIRONMENTS)
    for name in ("e1", "e2", "e3", "e4", "e5", "e6", "e7", "ün ï"):
        shutil.rmtree(name, ignore_errors=True)
    process = subprocess.Popen(
        ["bash", "-c", f"set -o pipefail; meanfield-pde {line}"],
        env=os.environ | {"MEANFIELD_PDE_THREADS": "1"} | odd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"{MOST_SECONDS} seconds ({line}, {odd})"
    shown = (out + err).decode(errors="replace")
    silent = process.returncode == 1 and ("|" in line or "2>" in line)  # nobody listens
    said = "" if silent and not NAME.search(shown) else judged(process.returncode, shown)
    if process.returncode == 2 and "2>" in line:
        said = ""
    return f"{said} ({line}, {odd})" if said else ""


def prepare() -> None:
    """Right input, and what stands in the place of it, in the current folder."""
    Path("c.toml").write_text(CIRCLE.replace("200", "20").replace("until = 5.0", "until = 0.1"))
    angle = np.linspace(0, 6, 7)
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    np.savez("a.npz", points=points, masses=np.ones(7), tokens=points, times=np.zeros(1))
    np.savez("a2.npz", tokens=points[None], times=np.zeros(1))
    np.savez("w2.npz", query=np.eye(3), key=np.eye(3), value=np.diag([1.0, 0.5, 0.2]))
    os.mkdir("folder")
    os.mkdir("pipes")
    for name in ("pipe", "pipes/model.safetensors", "pipe.safetensors", "pipe.npz", "pipe.csv"):
        os.mkfifo(name)
    Path("config.json").write_text("{}")
    Path("pipes/config.json").write_text('{"num_attention_heads": 2}')
    for name in ("loop", "loop.xdmf"):
        os.symlink(name, name)
    for name, path in (("pipe", "pipe.npz"), ("dir", "folder")):
        Path(f"{name}-case.toml").write_text(
            CIRCLE.replace('kind = "expression"', 'kind = "tokens"').replace(
                'density = "1 + 0.5*x + 0.3*x*y"', f'path = "{path}"'
            )
        )
    quiet = io.StringIO()
    with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
        assert cli._run(["run", "c.toml", "--output", "right", "--quiet"]) == 0
        assert cli._run(["mesh", "circle", "--cells", "20", "--output", "right.xdmf"]) == 0


KINDS: dict[str, Callable[[], str]] = {
    "cases": cases, "weights": weights, "tokens": tokens, "meshes": meshes,
    "arguments": arguments, "calls": calls, "surroundings": surroundings,
}  # fmt: skip


def hostile(counts: dict[str, int], seed: int = 1) -> dict[str, list[str]]:
    """The faults found in n inputs of each kind."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            prepare()
            found = {}
            for name, count in counts.items():
                random.seed(f"{name} {seed}")
                found[name] = [said for said in (KINDS[name]() for _ in range(count)) if said]
            return found
        finally:
            os.chdir(before)


OPTIONS = options("hostile", __doc__)


def main() -> None:
    """Print the table."""
    share = 10 if OPTIONS.parse_args().quick else 1
    table = Table("Hostile input", ["what", "inputs", "faults"])
    for name, count in COUNTS.items():
        faults = hostile({name: count // share})[name]
        table.row(name, count // share, len(faults))
        for said in sorted(set(faults))[:40]:
            print("   ", " ".join(said.split()), flush=True)


if __name__ == "__main__":
    present(main, OPTIONS)
