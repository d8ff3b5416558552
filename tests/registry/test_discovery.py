"""Entry points in, plugins and problems out; and the table made of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelyard.errors import UnknownName, UsageError
from kernelyard.registry import discovery, registry
from kernelyard.registry.backend import Backend
from kernelyard.registry.discovery import EntryPoint, Loaded, Plugin, Problem
from kernelyard.registry.registry import assemble
from kernelyard.registry.spec import DeclarationError
from tests.registry.fakes import SCALE, loaded, make_backend, make_kernel, make_op

Distribution = Callable[..., None]


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distribution:
    """`distribution(name, entry_points, module=source)` puts a fake installed distribution on sys.path."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, entry_points: str, folder: str = "", **modules: str) -> None:
        info = tmp_path / f"{folder or name.replace('-', '_') + '-1.0'}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        for module, source in modules.items():
            (tmp_path / f"{module}.py").write_text(source)
        importlib.invalidate_caches()

    return make


def found(distribution: str) -> list[EntryPoint]:
    return [point for point in discovery.entry_points()[0] if point.distribution == distribution]


GOOD = "from kernelyard.registry.discovery import Plugin\nplugin = Plugin(name='good')\n"


def at(value: str) -> EntryPoint:
    return EntryPoint("stranger", value, "strangers", "1.0")


def test_entry_points_are_read_with_their_distribution_built_in_ones_first(distribution: Distribution) -> None:
    distribution("Ky_Demo.One", "[kernelyard.plugins]\ndemo = ky_demo:plugin\n[other]\nx = y:z\n")
    points, problems = discovery.entry_points()
    assert EntryPoint("demo", "ky_demo:plugin", "ky-demo-one", "1.0") in points and problems == ()
    built_in = [point.built_in for point in points]
    assert built_in == sorted(built_in, reverse=True) and any(built_in)


def test_a_distribution_that_is_listed_twice_counts_once(distribution: Distribution) -> None:
    for folder in ("ky_demo-1.0", "ky-demo-1.0"):
        distribution("ky-demo", "[kernelyard.plugins]\ndemo = ky_demo:plugin\n", folder)
    assert len(found("ky-demo")) == 1


def test_an_old_metadata_folder_left_behind_brings_nothing(distribution: Distribution) -> None:
    distribution("ky-demo", "[kernelyard.plugins]\ndemo = ky_demo:plugin\n", "a-1.0")
    distribution("ky-demo", "[kernelyard.plugins]\nolder = ky_gone:plugin\n", "b-0.9")
    assert len(found("ky-demo")) == 1


def test_metadata_that_cannot_be_read_is_a_problem_with_its_place(distribution: Distribution) -> None:
    distribution("ky-broken", "[kernelyard.plugins]\nno equals sign here\n")
    distribution("ky-demo", "[kernelyard.plugins]\ndemo = ky_demo:plugin\n")
    _, problems = discovery.entry_points()
    assert [problem.plugin for problem in problems] == ["ky_broken-1.0.dist-info"] and "can't be read" in problems[0].reason
    assert len(found("ky-demo")) == 1


def test_plugins_named_for_this_process_alone_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_EXTRA_PLUGINS", " mine.kernels:plugin, ")
    assert found("KERNELYARD_EXTRA_PLUGINS") == [EntryPoint("kernels", "mine.kernels:plugin", "KERNELYARD_EXTRA_PLUGINS")]


# Importing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (GOOD, "ky_stranger:plugin"),
        (GOOD, "ky_stranger"),
        (GOOD, "ky_stranger:plugin [cuda]"),
        (GOOD + "class Inner:\n    made = plugin\n", "ky_stranger:Inner.made"),
        (GOOD + "def make():\n    return plugin\n", "ky_stranger:make"),
    ],
)
def test_an_entry_point_names_a_plugin_a_module_or_a_function(distribution: Distribution, source: str, value: str) -> None:
    importlib.sys.modules.pop("ky_stranger", None)  # type: ignore[attr-defined]
    distribution("strangers", "", ky_stranger=source)
    got = discovery.load(at(value))
    assert isinstance(got, Loaded) and got.plugin.name == "good" and got.load_ms >= 0


@pytest.mark.parametrize(
    ("source", "value", "reason"),
    [
        ("import no_such_library", "ky_stranger:plugin", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise SystemExit(3)", "ky_stranger:plugin", "SystemExit: 3"),
        ("class Stop(BaseException): pass\nraise Stop('now')", "ky_stranger:plugin", "Stop: now"),
        ("x = 1", "ky_stranger:plugin", "AttributeError: module 'ky_stranger' has no attribute 'plugin'"),
        ("plugin = 3", "ky_stranger:plugin", "ky_stranger:plugin gave int, not a Plugin."),
        ("def plugin(): return None", "ky_stranger:plugin", "gave NoneType, not a Plugin"),
        (GOOD.replace("'good'", "'good', api=2"), "ky_stranger:plugin", "written for plugin API 2, this is API 1"),
        (GOOD.replace("'good'", "'good', kernels=['cpp.one']"), "ky_stranger:plugin", "kernels holds ['cpp.one'], which is no Kernel"),
        ("", "no_such_module:plugin", "ModuleNotFoundError"),
        ("", "not a module:plugin", "ModuleNotFoundError"),
        ("", "", "ValueError"),
    ],
)
def test_an_import_that_goes_wrong_is_a_problem_with_the_reason(distribution: Distribution, source: str, value: str, reason: str) -> None:
    importlib.sys.modules.pop("ky_stranger", None)  # type: ignore[attr-defined]
    distribution("strangers", "", ky_stranger=source)
    got = discovery.load(at(value))
    assert isinstance(got, Problem) and reason in got.reason and (got.plugin, got.distribution) == ("stranger", "strangers")


def test_the_user_s_own_interrupt_is_not_a_plugin_s_problem(distribution: Distribution) -> None:
    distribution("strangers", "", ky_interrupted="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        discovery.load(at("ky_interrupted:plugin"))


def test_a_plugin_of_the_wrong_things_is_refused() -> None:
    with pytest.raises(DeclarationError, match="which is no Op"):
        Plugin("mine", ops=(make_kernel("fake.one"),))  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"name": "a-b"}, {"probe": "module"}, {"entry": "module"}])
def test_a_backend_that_is_badly_declared_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        Backend(**{"name": "fake", "summary": "", "devices": ("cpu",), "probe": "a:b", "entry": "a:b", **changes})


# Allowing and denying ---------------------------------------------------------------------------------

POINTS = [EntryPoint("cpp", "a:b", "kernelyard"), EntryPoint("one", "a:b", "ky-demo"), EntryPoint("two", "a:b", "ky-demo")]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", ["cpp", "one", "two"]),
        ("one", ["cpp", "one"]),
        ("ky-demo", ["cpp", "one", "two"]),
        ("Ky_Demo", ["cpp", "one", "two"]),
        ("-two", ["cpp", "one"]),
        ("ky-demo, -two", ["cpp", "one"]),
        ("-ky_demo", ["cpp"]),
        ("-cpp", ["one", "two"]),
    ],
)
def test_plugins_are_allowed_and_denied_by_their_name_or_distribution(
    monkeypatch: pytest.MonkeyPatch, words: str, names: list[str]
) -> None:
    monkeypatch.setenv("KERNELYARD_PLUGINS", words)
    assert [point.name for point in discovery.allowed(POINTS)] == names


@pytest.mark.parametrize("word", ["three", "-three"])
def test_allowing_what_is_not_installed_is_refused_with_what_is(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("KERNELYARD_PLUGINS", f"one,{word}")
    with pytest.raises(UsageError, match="KERNELYARD_PLUGINS names three. Installed: cpp, kernelyard, ky-demo, one, two"):
        discovery.allowed(POINTS)


# The table --------------------------------------------------------------------------------------------


def test_a_name_belongs_to_the_first_and_the_other_is_told_both() -> None:
    first = loaded(Plugin("first", (SCALE,), (make_kernel("fake.one", 1),), (make_backend(),)), "ky-first")
    second = loaded(
        Plugin("second", (make_op(),), (make_kernel("fake.one", 2), make_kernel("fake.two", 2)), (make_backend(),)), "ky-second"
    )
    table = assemble([first, second])
    assert table.op("scale") is SCALE and table.kernel("scale", "fake.one").entry.endswith("fill_1")
    assert table.kernel("scale", "fake.two") and table.plugin_of(table.kernel("scale", "fake.two")) is second
    assert [(problem.distribution, problem.reason) for problem in table.problems] == [
        ("ky-second", "op 'scale' was left out: ky-first (first) has that name already"),
        ("ky-second", "backend 'fake' was left out: ky-first (first) has that name already"),
        ("ky-second", "kernel of scale 'fake.one' was left out: ky-first (first) has that name already"),
    ]


def test_a_kernel_may_come_before_the_plugin_that_brings_its_op() -> None:
    kernels, ops = Plugin("a", kernels=(make_kernel("fake.one"),)), Plugin("b", (SCALE,), backends=(make_backend(),))
    assert assemble([loaded(kernels), loaded(ops)]).problems == []


@pytest.mark.parametrize(
    ("plugin", "missing"),
    [(Plugin("b", (SCALE,)), "backend 'fake'"), (Plugin("b", backends=(make_backend(),)), "op 'scale'")],
    ids=["backend", "op"],
)
def test_a_kernel_without_its_op_or_backend_is_left_out_with_the_reason(plugin: Plugin, missing: str) -> None:
    table = assemble([loaded(Plugin("a", kernels=(make_kernel("fake.one"),))), loaded(plugin)])
    assert [problem.reason for problem in table.problems] == [f"kernel 'fake.one' of scale was left out: there is no {missing}"]


def test_what_does_not_exist_is_told_what_does() -> None:
    table = assemble([loaded(Plugin("a", (SCALE,), (make_kernel("fake.one"),), (make_backend(),)))])
    for look, told in (
        (lambda: table.op("scales"), "no op named 'scales'. There are: scale."),
        (lambda: table.kernel("scale", "fake.two"), "no kernel of scale named 'fake.two'. There are: fake.one."),
        (lambda: table.kernel("scales", "fake.one"), "no op named 'scales'"),
        (lambda: table.backend("cpp"), "no backend named 'cpp'. There are: fake."),
        (lambda: table.kernels("scales"), "no op named 'scales'"),
    ):
        with pytest.raises(UnknownName) as caught:
            look()
        assert told in str(caught.value)


def test_a_plugin_that_uses_ops_while_it_is_imported_is_a_problem_not_a_deadlock(
    distribution: Distribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution("strangers", "", ky_eager=GOOD + "import kernelyard\nkernelyard.ops.rmsnorm\n")
    monkeypatch.setenv("KERNELYARD_EXTRA_PLUGINS", "ky_eager:plugin")
    registry.reset()
    try:
        reasons = [problem.reason for problem in registry.current().problems if problem.plugin == "ky_eager"]
    finally:
        registry.reset()
    assert len(reasons) == 1 and "must not use ops when it is imported" in reasons[0]


def test_what_a_plugin_prints_does_not_reach_stdout(
    distribution: Distribution, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    distribution("strangers", "", ky_printing=GOOD + "print('hello')\n")
    monkeypatch.setenv("KERNELYARD_EXTRA_PLUGINS", "ky_printing:plugin")
    registry.reset()
    try:
        registry.current()
    finally:
        registry.reset()
    told = capsys.readouterr()
    assert told.out == "" and "hello" in told.err


def test_an_error_while_assembling_leaves_the_next_call_able_to(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.reset()
    with monkeypatch.context() as patched:
        patched.setenv("KERNELYARD_PLUGINS", "no-such-plugin")
        with pytest.raises(UsageError):
            registry.current()
    assert "rmsnorm" in registry.current().ops
