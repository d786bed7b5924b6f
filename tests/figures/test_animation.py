"""Animations: a frame for each saved time, and a message where there is only one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from meanfield_pde import ProjectionLimit, read_result
from meanfield_pde.experiments import redraw
from meanfield_pde.figures import animation
from tests.conftest import Main, Write
from tests.problems import CIRCLE, SPHERE

pytestmark = pytest.mark.painted


@pytest.mark.parametrize("text", [CIRCLE, SPHERE], ids=["circle", "sphere"])
def test_an_animation_moves(
    text: str, main: Main, write_case: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redraw, "draw_run", lambda *arguments: [])
    out = tmp_path / "out"
    times = ("save_every = 0.5", "save_at = [1.0]")
    case = write_case(text, *([times] if text is CIRCLE else []))
    assert main("run", case, "--until", 2, "--quiet", "--output", out)[0] == 0
    code, err = main("plot", out, "--animate")
    assert code == 0
    assert err.endswith(f"{out / 'figures/density.gif'}\n")
    with Image.open(out / "figures/density.gif") as gif:
        assert gif.n_frames == 3
        frames = []
        for i in range(3):
            gif.seek(i)
            frames.append(np.asarray(gif.convert("L"), dtype=float))
    assert min(frame.std() for frame in frames) > 5
    assert np.abs(frames[2] - frames[0]).max() > 50
    draw = animation.circle_frames if text is CIRCLE else animation.sphere_frames
    result = read_result(out)
    figure, update = draw(result, ProjectionLimit(result.attention))
    update(1)
    assert figure.axes[0].get_title() == "t = 1"
    assert figure.axes[0].get_xlabel() == (
        "angle on the circle (degrees)" if text is CIRCLE else ""
    )
    if text is SPHERE:
        sides = {axes.get_title(): axes for axes in figure.axes[1:3]}
        assert list(sides) == ["from +e", "from -e"]
        for axes in sides.values():  # its own hemisphere has one of each pair of marks
            marked = [line for line in axes.lines if line.get_label().startswith("±")]
            assert [np.isfinite(line.get_xdata()).sum() for line in marked] == [1, 1]
            assert np.asarray(axes.images[0].get_array())[..., :3].std() > 0.05


def test_one_time_does_not_move(main: Main, write_case: Write, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main("run", write_case(CIRCLE), "--until", 0, "--quiet", "--output", out)[0] == 0
    code, err = main("plot", out, "--animate")
    assert code == 2
    assert "two saved times or more, got 1" in err
