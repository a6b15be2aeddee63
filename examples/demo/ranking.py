"""Makes the ranking of packages from the measures of modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from measure import Module


@dataclass
class Package:
    """Sums over the modules of a package, without its test suites."""

    name: str
    modules: int = 0
    tokens: int = 0
    functions: int = 0
    definitions: int = 0
    documented: int = 0
    imports: set[str] = field(default_factory=set)

    @property
    def coverage(self) -> float:
        """Share of the package's definitions that have a docstring."""
        return self.documented / self.definitions

    def add(self, module: Module) -> None:
        self.modules += 1
        self.tokens += module.tokens
        self.functions += module.functions
        self.definitions += module.definitions
        self.documented += module.documented
        self.imports |= module.imports - {self.name}


@dataclass(frozen=True)
class Ranking:
    """Packages by size, the largest first, and further counts.

    Attributes:
        imported_by: for each module, how many of the library's modules import it, without tests.
        unparsed: for each file that could not be measured, by its path, why.
    """

    packages: list[Package]
    imported_by: Counter[str]
    modules: int
    test_modules: int
    tokens: int
    unparsed: dict[str, str]


def rank(modules: Iterable[Module], unparsed: Mapping[str, str]) -> Ranking:
    """Sum the modules up by package."""
    measured = list(modules)
    library = [module for module in measured if not module.is_test]
    packages: dict[str, Package] = {}
    for module in library:
        packages.setdefault(module.package, Package(module.package)).add(module)
    return Ranking(
        packages=sorted(packages.values(), key=lambda package: package.tokens, reverse=True),
        imported_by=Counter(name for module in library for name in module.imports),
        modules=len(measured),
        test_modules=len(measured) - len(library),
        tokens=sum(module.tokens for module in measured),
        unparsed=dict(sorted(unparsed.items())),
    )
