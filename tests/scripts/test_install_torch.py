"""Which pip commands the set-up runs, decided from facts alone."""

from __future__ import annotations

import sys

import pytest
from install_torch import INDEX_VARIABLE, Attempt, Facts, Step, last_line, plan, satisfied, take

CPU_BUILD, PLAIN = ("torch==2.13.0+cpu",), ("torch==2.13.0",)


def commands(facts: Facts, package: str) -> list[tuple[str, ...]]:
    return [attempt.arguments for step in plan(facts) if step.package == package for attempt in step.attempts]


def test_linux_without_a_gpu_asks_for_the_cpu_build_before_the_plain_one():
    assert commands(Facts("Linux", nvidia=False), "torch") == [CPU_BUILD, PLAIN]


def test_a_named_index_is_asked_before_the_plain_build():
    tried = commands(Facts("Linux", nvidia=False, index="file:///wheels"), "torch")
    assert tried == [CPU_BUILD, ("--extra-index-url", "file:///wheels", *CPU_BUILD), PLAIN]


def test_the_plain_build_on_linux_is_announced_with_its_size_and_the_way_round():
    (step, _) = plan(Facts("Linux", nvidia=False))
    *earlier, last = step.attempts
    assert "GB" in last.notice and INDEX_VARIABLE in last.notice
    assert not any(attempt.notice for attempt in earlier)


def test_a_gpu_gets_the_plain_build_which_brings_its_own_triton():
    facts = Facts("Linux", nvidia=True)
    assert commands(facts, "torch") == [("torch>=2.11",)]
    assert commands(facts, "triton") == []


def test_a_mac_gets_the_plain_build_which_is_a_cpu_build_and_no_triton():
    (step,) = plan(Facts("Darwin", nvidia=False))
    assert step.attempts == (Attempt(PLAIN),)


def test_linux_without_a_gpu_gets_triton_for_the_interpreter_but_can_do_without():
    (step,) = plan(Facts("Linux", nvidia=False, torch="2.13.0+cpu"))
    assert step.package == "triton" and step.optional


@pytest.mark.parametrize("installed", ["2.11.0", "2.13.0+cpu", "2.14.1+cu130", "3.0.0", "2.12.0a0+git1234"])
def test_an_installed_torch_that_will_do_is_left_alone(installed: str):
    assert satisfied(installed)
    assert plan(Facts("Linux", nvidia=True, torch=installed)) == ()


@pytest.mark.parametrize("installed", [None, "2.10.1", "1.13.1", "", "unknown"])
def test_a_missing_or_older_torch_is_installed(installed: str | None):
    assert not satisfied(installed)
    assert commands(Facts("Linux", nvidia=True, torch=installed), "torch")


FAKE_PIP = (sys.executable, "-c", "import sys; print('ERROR: none', file=sys.stderr); sys.exit('good' not in sys.argv)")


def test_attempts_stop_at_the_first_that_succeeds(capfd: pytest.CaptureFixture[str]):
    assert take(Step("torch", (Attempt(("bad",)), Attempt(("good",)), Attempt(("never",)))), FAKE_PIP)
    told = capfd.readouterr().err
    assert "torch: ERROR: none" in told and "never" not in told


def test_when_every_attempt_fails_the_step_fails():
    assert not take(Step("torch", (Attempt(("bad",)), Attempt(("bad",)))), FAKE_PIP)


def test_an_optional_step_that_fails_says_what_is_lost_and_goes_on(capfd: pytest.CaptureFixture[str]):
    assert take(Step("triton", (Attempt(("bad",)),), optional="NOTICE: without it"), FAKE_PIP)
    assert "NOTICE: without it" in capfd.readouterr().err


def test_the_last_line_of_a_silent_pip_still_says_something():
    assert last_line("\n a \n b \n\n") == "b"
    assert last_line(None) == "pip failed"
