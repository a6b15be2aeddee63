"""Deliberately broken code: each variant swaps a few functions of the real code while it is applied.

A variant may have a setting that makes a rare situation frequent. The sound code runs in that setting too, to know
whether an invariant catches the variant or the setting.
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
"""(the object, the name of its attribute, the replacement)"""
Break = Callable[[], list[Swap]]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to break the code.

    Attributes:
        setting: what is swapped in the simulation for this variant, although the code is sound.
        rule: number of the rule that it breaks; 0 if rules have no numbers.
        test: the test that fails with this variant, as pytest names it, if hardly any seed reaches what it breaks.
    """

    breaks: Break
    setting: Sequence[Swap] = ()
    rule: int = 0
    test: str = ""


class Variants(dict[str, Variant]):
    """Variants by the name of their function; its docstring describes them."""

    def variant(self, make: Break) -> Break:
        """Register a variant."""
        self[make.__name__] = Variant(make)
        return make

    def where(self, setting: Sequence[Swap]) -> Callable[[Break], Break]:
        """Register a variant that runs in a setting."""

        def register(make: Break) -> Break:
            self[make.__name__] = Variant(make, setting)
            return make

        return register

    def rule(self, number: int, test: str = "") -> Callable[[Break], Break]:
        """Register a variant that breaks the rule with this number."""

        def register(make: Break) -> Break:
            self[make.__name__] = Variant(make, rule=number, test=test)
            return make

        return register

    @contextmanager
    def applied(self, name: str, sound: bool = False) -> Iterator[None]:
        """Apply a variant within the block, or only its setting if `sound`; "" changes nothing."""
        variant = self[name] if name else Variant(list)
        with ExitStack() as stack:
            for owner, attribute, new in [*variant.setting, *([] if sound else variant.breaks())]:
                stack.enter_context(mock.patch.object(owner, attribute, new))
            yield


def everywhere(old: Any, new: Any) -> list[Swap]:
    """Replace a function in all modules of Fray and of the tests that refer to it."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith(("fray_", "test_"))]
    return [(m, attribute, new) for m in modules for attribute, value in vars(m).copy().items() if value is old]


def late_writes() -> list[Swap]:
    """A setting: many writes land late, or twice."""
    real = Rates.drawn

    def drawn(draw: random.Random) -> Rates:
        return replace(real(draw), applied_late=0.1, twice=0.15)

    return [(Rates, "drawn", staticmethod(drawn))]
