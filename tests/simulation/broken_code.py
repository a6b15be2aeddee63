"""Deliberately broken code: each variant swaps a few functions of the real code while it is applied.

What hardly any seed comes to is looked for where it happens: a variant may have a setting, in which the sound code runs
too, so that it is known which of the two an invariant catches.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from tests.simulation.weather import Rates

Swap = tuple[Any, str, Any]
"""(whose attribute, its name, what stands there instead)"""
Break = Callable[[], list[Swap]]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to break the code.

    Attributes:
        setting: what is swapped in the simulation for its sake, the code being sound.
        rule: number of the rule that it breaks; 0 where rules have none.
        test: of what hardly any seed comes to, the test that is red while it is applied, as pytest names it.
    """

    breaks: Break
    setting: Sequence[Swap] = ()
    rule: int = 0
    test: str = ""


class Variants(dict[str, Variant]):
    """Variants by their function's name; the docstring says what they are."""

    def variant(self, make: Break) -> Break:
        """Register one."""
        self[make.__name__] = Variant(make)
        return make

    def where(self, setting: Sequence[Swap]) -> Callable[[Break], Break]:
        """Register one that is looked for in a setting."""

        def register(make: Break) -> Break:
            self[make.__name__] = Variant(make, setting)
            return make

        return register

    def rule(self, number: int, test: str = "") -> Callable[[Break], Break]:
        """Register one that breaks the rule with this number."""

        def register(make: Break) -> Break:
            self[make.__name__] = Variant(make, rule=number, test=test)
            return make

        return register

    @contextmanager
    def applied(self, name: str, sound: bool = False) -> Iterator[None]:
        """While this lasts the code is broken in that way, or `sound` in its setting; "" leaves it as it is."""
        variant = self[name] if name else Variant(list)
        with ExitStack() as stack:
            for owner, attribute, new in [*variant.setting, *([] if sound else variant.breaks())]:
                stack.enter_context(mock.patch.object(owner, attribute, new))
            yield


def everywhere(old: Any, new: Any) -> list[Swap]:
    """Replace a function wherever a module of Fray refers to it, or a test."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith(("fray_", "test_"))]
    return [(m, attribute, new) for m in modules for attribute, value in vars(m).copy().items() if value is old]


def late_writes() -> list[Swap]:
    """A setting: many writes land late, or twice."""
    real = Rates.drawn

    def drawn(draw: random.Random) -> Rates:
        return replace(real(draw), applied_late=0.1, twice=0.15)

    return [(Rates, "drawn", staticmethod(drawn))]
