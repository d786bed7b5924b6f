"""Expressions: what is computed, what is refused and with which words."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from meanfield_pde.errors import InputError
from meanfield_pde.initial.expression import MAX_DEPTH, MAX_LENGTH, Expression
from meanfield_pde.support.checks import did_you_mean

POINTS = np.array([[1.0, 0.0, 0.0], [0.6, 0.0, 0.8], [-0.48, 0.6, -0.64]])
X, Y, Z = POINTS.T


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1 + 0.5*x + 0.3*x*y", 1 + 0.5 * X + 0.3 * X * Y),
        ("  2 ", np.full(3, 2.0)),
        ("-x**2", -(X**2)),
        ("2**-x", 2**-X),
        ("x - y - z", X - Y - Z),
        ("x / (2 + y) / 4", X / (2 + Y) / 4),
        ("2**3**2 * x", 512 * X),
        ("+exp(sin(pi*x)) + cos(y) * tan(z)", np.exp(np.sin(np.pi * X)) + np.cos(Y) * np.tan(Z)),
        ("sqrt(abs(z)) + log(3 + x) + 1e-3", np.sqrt(abs(Z)) + np.log(3 + X) + 1e-3),
    ],
)
def test_values(text: str, values: np.ndarray) -> None:
    np.testing.assert_allclose(Expression(text)(POINTS), values, rtol=1e-15, atol=1e-15)


def test_undefined_values_are_nan_or_inf_without_a_warning() -> None:
    with np.errstate(all="raise"):
        assert np.isnan(Expression("sqrt(x - 2)")(POINTS)).all()
        assert np.isinf(Expression("1/0")(POINTS)).all()
        assert np.isinf(Expression("9.0**9.0**9.0**9.0")(POINTS)).all()


def test_expression_can_be_sent_to_another_process() -> None:
    sent = pickle.loads(pickle.dumps(Expression("1 + x", ("x", "y"))))
    assert sent == Expression("1 + x", ("x", "y"))
    assert sent(POINTS[:, :2]).tolist() == (1 + X).tolist()


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("__import__('os')", "unknown name '__import__'"),
        ("__import__('os').system('true')", "attributes"),
        ("x.__class__", "attributes ('.name') are not allowed"),
        ("np.exp(x)", "write 'exp(x)'"),
        ("(lambda: 1)()", "'lambda' is not allowed, at column 2"),
        ("[x for x in (1, 2)]", "ListComp is not allowed"),
        ("{x for x in (1, 2)}", "SetComp is not allowed"),
        ("(x for x in (1, 2))", "GeneratorExp is not allowed"),
        ("x[0]", "indices"),
        ("x if x > 0 else 0", "'if' is not allowed"),
        ("x > 0", "comparisons"),
        ("x and y", "'and' and 'or'"),
        ("not x", "Not is not allowed"),
        ("x // 2", "write '/'"),
        ("x @ y", "write '*'"),
        ("x ^ 2", "write '**'"),
        ("(y := x)", "NamedExpr is not allowed"),
        ("x, y", "Tuple is not allowed"),
        ("f'{x}'", "JoinedStr is not allowed"),
        ("exp(*x)", "Starred is not allowed"),
        ("exp(x, y)", "function 'exp' takes exactly one argument, at column 1"),
        ("exp()", "takes exactly one argument"),
        ("exp(x=1)", "takes exactly one argument"),
        ("1 + exp", "function 'exp' needs an argument: exp(...), at column 5"),
        ("x(y)", "'x' is not a function; write '*' for a product"),
        ("2(x)", "write '*' for a product"),
        ("2x", "invalid decimal literal, at column 1 of '2x'"),
        ("1 +", "invalid syntax, at the end of '1 +'"),
        ("(x", "'(' was never closed, at column 1"),
        ("1 + sine(x)", "unknown name 'sine'; did you mean 'sin'?"),
        ("1 + sine(x)", "at column 5 of '1 + sine(x)'"),
        ("1 + X", "unknown name 'X'; did you mean 'x'?"),
        ("Pi", "did you mean 'pi'?"),
        ("w", "(known: x, y, z, pi, abs, cos, exp, log, sin, sqrt, tan)"),
        ("True", "True is not a real number"),
        ("'x'", "'x' is not a real number"),
        ("1j", "1j is not a real number"),
        ("...", "Constant is not allowed"),
        ("1e999", "number too large"),
        ("1" * 400, "number too large"),
        ("x + π", "character 'π' is not allowed, at column 5"),
        ("x\n+ y", "character '\\n' is not allowed"),
        ("x\0", "is not allowed"),
        ("", "must not be empty"),
        ("  ", "must not be empty"),
        ("x" + "+x" * MAX_LENGTH, f"may have {MAX_LENGTH} characters"),
        ("-" * (MAX_DEPTH + 1) + "x", "levels deep"),
        ("-" * (MAX_LENGTH - 1) + "x", "levels deep"),
        ("(" * 900 + "x" + ")" * 900, "too many nested parentheses"),
        ("exp(" * 150 + "x**" + "x**" * 200 + "x" + ")" * 150, "levels deep"),
    ],
)
def test_refused(text: str, fragment: str) -> None:
    with pytest.raises(InputError) as caught:
        Expression(text)
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["9**9**9**9**9", "9" + "**9" * 100, "2.0**1e308"])
def test_huge_powers_overflow_at_once(text: str) -> None:
    assert np.isinf(Expression(text)(POINTS)).all()


@pytest.mark.parametrize("text", ["1if x else 2", "'\\d'"])
def test_python_does_not_warn_about_the_text(text: str, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(InputError):
        Expression(text)
    assert not recwarn.list


def test_third_coordinate_needs_three_dimensions() -> None:
    with pytest.raises(InputError, match="'z' is the third coordinate, but the dimension is 2"):
        Expression("1 + z", ("x", "y"))
    with pytest.raises(InputError, match="needs points with 2 coordinates, got 3"):
        Expression("1 + x", ("x", "y"))(POINTS)


def test_text_must_be_a_string() -> None:
    number: Any = 1.0
    with pytest.raises(InputError, match=r"must be a string, got 1\.0"):
        Expression(number)


def test_did_you_mean() -> None:
    assert did_you_mean("valeu", ["query", "value"]) == "; did you mean 'value'?"
    assert did_you_mean("abc", ["query", "value"]) == ""
    assert did_you_mean(3, ["query", "value"]) == ""
