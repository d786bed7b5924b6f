"""Expressions in x, y, z that a user writes for an initial density, parsed but never `eval`'d.

The text is parsed by `ast`, every node is checked against a whitelist, and what remains is a short
postfix program of numbers, variables and numpy functions. Nothing else can be reached from it.
"""

from __future__ import annotations

import ast
import math
import warnings
from dataclasses import dataclass, field

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import did_you_mean, points_of, shown

FUNCTIONS: dict[str, np.ufunc] = {
    "abs": np.absolute,
    "cos": np.cos,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
}
CONSTANTS = {"pi": math.pi}
OPERATORS: dict[type[ast.AST], np.ufunc] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.USub: np.negative,
    ast.UAdd: np.positive,
}
# What a refused construct is called, and what to write instead.
REFUSED: dict[type[ast.AST], str] = {
    ast.BitXor: "'^' is not a power here; write '**'",
    ast.Compare: "comparisons are not allowed",
    ast.BoolOp: "'and' and 'or' are not allowed",
    ast.IfExp: "'if' is not allowed",
    ast.Attribute: "attributes ('.name') are not allowed; write 'exp(x)', not 'np.exp(x)'",
    ast.Subscript: "indices ('[...]') are not allowed; write x, y, z",
    ast.Lambda: "'lambda' is not allowed",
    ast.FloorDiv: "'//' is not allowed; write '/'",
    ast.MatMult: "'@' is not allowed; write '*'",
    ast.Mod: "'%' is not allowed",
}
MAX_LENGTH = 2000  # characters, far above any density that makes sense
# Far above any density, too, and a fifth of Python's own limit, so that checking the tree cannot
# exhaust the stack.
MAX_DEPTH = 200


@dataclass(frozen=True)
class Expression:
    """A formula in the coordinates of a point, for example "1 + 0.5*x + exp(-y**2)".

    Attributes:
        text: numbers, + - * / **, parentheses, the variables, the names in FUNCTIONS, and pi.
        variables: names of the coordinates, in order.
    """

    text: str
    variables: tuple[str, ...] = ("x", "y", "z")
    _program: tuple[float | str | np.ufunc, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InputError(f"an expression must be a string, got {shown(self.text)}")
        program: list[float | str | np.ufunc] = []
        self._append(_parse(self.text), program, 0)
        object.__setattr__(self, "_program", tuple(program))

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Values at the rows of points (N x d); nan and inf where the formula is not defined."""
        points = points_of(points)
        if points.shape[1] != len(self.variables):
            raise InputError(
                f"an expression in {', '.join(self.variables)} needs points with "
                f"{len(self.variables)} coordinates, got {points.shape[1]}"
            )
        coordinates = dict(zip(self.variables, points.T, strict=True))
        stack: list[np.ndarray] = []
        with np.errstate(all="ignore"):
            for step in self._program:
                if isinstance(step, np.ufunc):
                    operands = stack[-step.nin :]
                    del stack[-step.nin :]
                    stack.append(step(*operands))
                elif isinstance(step, str):
                    stack.append(coordinates[step])
                else:
                    stack.append(np.asarray(step))
        return np.array(np.broadcast_to(stack.pop(), len(points)))

    def _append(self, node: ast.expr, program: list[float | str | np.ufunc], depth: int) -> None:
        """Check one node of the syntax tree and append it to the program, operands first."""
        if depth > MAX_DEPTH:
            raise self._error(node, f"nested more than {MAX_DEPTH} levels deep")
        match node:
            case ast.Constant(value=bool() | str() | bytes() | complex() | None):
                raise self._error(node, f"{node.value!r} is not a real number")
            case ast.Constant(value=int() | float() as number):
                program.append(self._number(node, number))
            case ast.Name(id=name) if name in self.variables:
                program.append(name)
            case ast.Name(id=name) if name in CONSTANTS:
                program.append(CONSTANTS[name])
            case ast.Name(id=name) if name in FUNCTIONS:
                raise self._error(node, f"function '{name}' needs an argument: {name}(...)")
            case ast.Name(id=name):
                raise self._unknown(node, name)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
                self._append(operand, program, depth + 1)
                program.append(OPERATORS[type(op)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                self._append(left, program, depth + 1)
                self._append(right, program, depth + 1)
                program.append(OPERATORS[type(op)])
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if (
                name in FUNCTIONS
            ):
                self._append(argument, program, depth + 1)
                program.append(FUNCTIONS[name])
            case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
                raise self._error(node, f"function '{name}' takes exactly one argument")
            case ast.Call(func=ast.Name(id=name)) if name in (*self.variables, *CONSTANTS):
                raise self._error(node, f"'{name}' is not a function; write '*' for a product")
            case ast.Call(func=ast.Name(id=name)):
                raise self._unknown(node, name)
            case ast.Call(func=ast.Constant() | ast.BinOp() | ast.Call()):
                raise self._error(node, "write '*' for a product")
            case ast.Call(func=func):
                raise self._error(func, _refusal(func))
            case _:
                raise self._error(node, _refusal(node))

    def _number(self, node: ast.expr, number: int | float) -> float:
        # As a float, so that 9**9**9 overflows at once instead of filling the memory.
        try:
            value = float(number)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise self._error(node, "number too large")
        return value

    def _unknown(self, node: ast.expr, name: str) -> InputError:
        known = [*self.variables, *CONSTANTS, *FUNCTIONS]
        if name == "z":
            return self._error(node, "'z' is the third coordinate, but the dimension is 2")
        reason = f"unknown name '{name}'{did_you_mean(name, known)}"
        return self._error(node, f"{reason} (known: {', '.join(known)})")

    def _error(self, node: ast.expr, reason: str) -> InputError:
        return _error(self.text, f"at column {node.col_offset + 1}", reason)


def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise InputError(f"an expression may have {MAX_LENGTH} characters, got {len(text)}")
    if not text.strip():
        raise InputError("an expression must not be empty")
    for column, character in enumerate(text.strip(), start=1):
        if character == "#":  # which Python takes for the beginning of a comment
            raise _error(text, f"at column {column}", "'#' is not allowed, nor are comments")
        # ast counts columns in bytes and folds look-alike letters; plain ASCII avoids both.
        if not (character.isascii() and character.isprintable()):
            raise _error(text, f"at column {column}", f"character {character!r} is not allowed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        where = f"at column {error.offset}" if error.offset else "at the end"
        raise _error(text, where, error.msg) from None
    except (RecursionError, MemoryError):
        raise InputError(f"the expression is nested more than {MAX_DEPTH} levels deep") from None


def _refusal(node: ast.expr) -> str:
    kind = type(node.op) if isinstance(node, ast.BinOp | ast.UnaryOp) else type(node)
    return REFUSED.get(kind, f"{kind.__name__} is not allowed in an expression")


def _error(text: str, where: str, reason: str) -> InputError:
    shown = text.strip() if len(text) <= 80 else text.strip()[:77] + "..."
    return InputError(f"{reason}, {where} of {shown!r}")
