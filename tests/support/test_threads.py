"""Work dealt out to threads: everything once, errors raised, and alive after a fork."""

from __future__ import annotations

import os
import threading
import warnings

import pytest

from meanfield_pde.support.threads import WORK_PER_THREAD, in_parts, useful_threads


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_everything_is_done_once(count: int, threads: int) -> None:
    done = [0] * count

    def work(part: tuple[int, int]) -> None:
        for item in range(*part):
            done[item] += 1

    in_parts(work, count, threads)
    assert done == [1] * count


def test_two_threads_work_at_the_same_time() -> None:
    """Each of two parts waits for the other to be begun."""
    together = threading.Barrier(2, timeout=30)
    in_parts(lambda part: together.wait() and None, 2, 2)


def test_one_thread_has_no_helpers() -> None:
    parts = []
    in_parts(parts.append, 100, 1)
    assert parts == [(0, 100)]


@pytest.mark.parametrize("of_caller", [True, False])
def test_an_error_in_any_of_the_threads_is_raised(of_caller: bool) -> None:
    caller, together = threading.current_thread(), threading.Barrier(2, timeout=30)
    begun = []

    def work(part: tuple[int, int]) -> None:
        begun.append(part)
        if len(begun) <= 2:
            together.wait()
        if (threading.current_thread() is caller) is of_caller:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        in_parts(work, 1000, 2)


def test_a_forked_process_starts_threads_of_its_own() -> None:
    def both() -> None:
        together = threading.Barrier(2, timeout=10)
        in_parts(lambda part: together.wait() and None, 2, 2)

    both()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            both()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_little_work_is_left_to_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meanfield_pde.support.threads._allowed", [4])
    work = [0.0, 1.9, 2.0, 100.0]
    assert [useful_threads(one * WORK_PER_THREAD) for one in work] == [1, 1, 2, 4]
