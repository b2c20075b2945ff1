"""The modules that a release ships, and who imports whom: what the bars `house-*` count.

A module is a `.py` file of one of the packages below. Imports are read from the syntax tree, so those inside functions
count as well.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGES = ("fleet", "wire", "exporter", "pipeline", "analyzer", "recommender", "enforcer", "dashboards", "gputide")


@dataclass(frozen=True, kw_only=True)
class ShippedModules:
    """The modules of a checkout.

    Attributes:
        root: folder of the checkout.
    """

    root: Path

    @cached_property
    def paths(self) -> dict[str, Path]:
        """File of each module, by its dotted name."""
        found = {}
        for package in PACKAGES:
            for path in sorted((self.root / package).rglob("*.py")):
                parts = path.relative_to(self.root).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return found

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """Syntax tree of each module."""
        return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in self.paths.items()}

    def lines(self, module: str) -> int:
        """Lines of a module's file."""
        return len(self.paths[module].read_text(encoding="utf-8").splitlines())

    def imported(self, module: str) -> set[str]:
        """What a module imports, by full names: modules, and names in modules."""
        found: set[str] = set()
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        return found

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Shipped modules that import each shipped module; a package counts where a name of its own is imported."""
        found: dict[str, set[str]] = {name: set() for name in self.paths}
        for module, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    named = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module is not None:
                    inner = [f"{node.module}.{alias.name}" for alias in node.names]
                    named = [name if name in self.paths else node.module for name in inner]
                else:
                    continue
                for name in named:
                    if name in found and name != module:
                        found[name].add(module)
        return found
