"""Deliberately broken code: each variant swaps a few functions of the real code while it is applied."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

Swap = tuple[Any, str, Any]
"""(whose attribute, its name, what stands there instead)"""
Variant = Callable[[], list[Swap]]


class Variants(dict[str, Variant]):
    """Variants by their function's name; the docstring says what they are."""

    def variant(self, make: Variant) -> Variant:
        """Register one."""
        self[make.__name__] = make
        return make

    @contextmanager
    def applied(self, name: str) -> Iterator[None]:
        """While this lasts the code is broken in that way; "" leaves it as it is."""
        with ExitStack() as stack:
            for owner, attribute, new in self[name]() if name else []:
                stack.enter_context(mock.patch.object(owner, attribute, new))
            yield


def everywhere(old: Any, new: Any) -> list[Swap]:
    """Replace a function wherever a module of Fray refers to it."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("fray_")]
    return [(m, attribute, new) for m in modules for attribute, value in vars(m).copy().items() if value is old]
