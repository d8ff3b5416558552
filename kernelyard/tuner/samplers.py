"""Samplers by the names that `tune --sampler` takes: what each needs, and how it sees a space. Optuna is imported when one is made.

`places`: GP and CMA-ES get each parameter as the place of its value in declared order, which rises in cost: CMA-ES knows no
categories and would draw at random without a word. `walks`: the grid is ours, every valid config in declared order. Optuna's GridSampler
spends asks on what constraints forbid, and raises RuntimeError after its last trial where trials are asked and told.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelyard.errors import UnknownName, UsageError
from kernelyard.registry.machine import installed

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

DEFAULT, HUB = "tpe", "hub:"
NEEDS: dict[str, tuple[str, ...]] = {"tpe": (), "gp": ("torch", "scipy"), "cmaes": ("cmaes",), "random": (), "grid": ()}


@dataclass(frozen=True)
class Sampling:
    """A sampler by name: `make` gives one for a seed."""

    name: str
    make: Callable[[int], BaseSampler]
    places: bool = False
    walks: bool = False


def able() -> list[str]:
    """The samplers of Optuna's own that can run here."""
    return [name for name, packages in NEEDS.items() if all(map(installed, packages))]


def check(name: str) -> None:
    """Raises UsageError or UnknownName for a sampler that does not exist or can't run here; imports nothing."""
    if not name.startswith(HUB) and name not in NEEDS:
        raise UnknownName("sampler", name, (*NEEDS, "hub:package/name (any of OptunaHub)"))
    needs = ("optunahub",) if name.startswith(HUB) else NEEDS[name]
    if missing := [package for package in needs if not installed(package)]:
        packages = " ".join(missing)
        here = f"Here run {', '.join(able())}."
        raise UsageError(f"sampler {name} needs {packages}, not installed here.", exists=here, do=f"pip install {packages}")


def sampling(name: str) -> Sampling:
    """The sampler called `name`; one of OptunaHub is fetched now. Raises like `check`."""
    check(name)
    if name.startswith(HUB):
        return Sampling(name, _from_hub(name.removeprefix(HUB)))
    return Sampling(name, lambda seed: _ours(name, seed), places=name in ("gp", "cmaes"), walks=name == "grid")


def _ours(name: str, seed: int) -> BaseSampler:
    """TPE models parameters together, for tile sizes that only pay in pairs."""
    from optuna.samplers import CmaEsSampler, GPSampler, RandomSampler, TPESampler

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls multivariate and GP experimental
        if name == "tpe":
            return TPESampler(seed=seed, multivariate=True)
        if name == "gp":
            return GPSampler(seed=seed)
        return CmaEsSampler(seed=seed) if name == "cmaes" else RandomSampler(seed=seed)


def _from_hub(package: str) -> Callable[[int], BaseSampler]:
    import importlib

    from optuna.samplers import BaseSampler

    try:
        hub: Any = importlib.import_module("optunahub")
        module = hub.load_module(package)
    except Exception as error:  # half an installation, the network, GitHub, and whatever a stranger's package raises when it is imported
        why = f"{type(error).__name__}: {_told(error)}"
        raise UsageError(f"OptunaHub's {package} can't be loaded: {why}.", do="Browse https://hub.optuna.org") from error
    classes = [one for one in vars(module).values() if inspect.isclass(one) and issubclass(one, BaseSampler)]
    own = [one for one in classes if one.__module__.startswith(module.__name__)]
    if len(own) != 1:
        raise UsageError(f"OptunaHub's {package} has {len(own)} samplers, one is wanted.", exists=", ".join(one.__name__ for one in own))
    kind: Any = own[0]
    seeded = "seed" in inspect.signature(kind).parameters
    return lambda seed: kind(seed=seed) if seeded else kind()


def _told(error: Exception) -> str:
    """The line that says why: git's own, which OptunaHub fetches with, comes after its command; else the first."""
    lines = str(error).splitlines() or [""]
    return next((line.partition("fatal: ")[2] for line in lines if "fatal: " in line), lines[0]).strip("' .")
