"""Reads YAML that others wrote, in time that grows with its length alone.

The parser looks at every open bracket again for each new one, so that a few kilobytes of `[` cost it seconds and a
ConfigMap's megabyte hours; twenty merges of merges build a million entries; nothing that is meant is like that. Used
for device plugins' configurations, for kubeconfigs and for manifests of a repository.

Source: yaml.org/spec/1.1, yaml.org/type/merge.html; yaml/pyyaml:lib/yaml/scanner.py (`flow_level`, `indents`),
constructor.py (`flatten_mapping`).
"""

from __future__ import annotations

from typing import Any

import yaml

DEPTH_MAX = 64
"""Deepest nesting that is read."""
MERGES_MAX = 1000
"""Most entries that all merges (`<<`) of a document may bring in: each may double what another brought."""
DIGITS_MAX = 100
"""Longest number; one to the base of sixty (`1:30:00`) costs the square of its length."""
LENGTH_MAX = 4 * 2**20
"""Longest text that is read, in characters; Kubernetes keeps objects of less than two megabytes."""

_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


class _BoundedLoader(yaml.SafeLoader):
    """Builds plain values only, as its base does, and gives up on what is nested too deeply or grows too much."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._merged = 0

    def flatten_mapping(self, node: Any) -> None:
        """A mapping takes over what it merges."""
        for key, value in node.value:
            if key.tag == _MERGE:
                for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(one, yaml.MappingNode):
                        # What it merges itself first: its length says then what it brings.
                        self.flatten_mapping(one)
                    self._merged += max(1, len(one.value))
                    if self._merged > MERGES_MAX:
                        raise yaml.YAMLError(f"its merges bring in more than {MERGES_MAX} entries")
        super().flatten_mapping(node)

    def construct_scalar(self, node: Any) -> Any:
        """The text of a value that holds no others."""
        if node.tag in _NUMBERS and len(node.value) > DIGITS_MAX:
            raise yaml.YAMLError(f"a number in it has {len(node.value)} characters, more than {DIGITS_MAX}")
        return super().construct_scalar(node)

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        """A bracket or brace opens."""
        self._check_depth(self.flow_level)
        super().fetch_flow_collection_start(token_class)

    def add_indent(self, column: int) -> bool:
        """A block begins further to the right."""
        self._check_depth(len(self.indents))
        return bool(super().add_indent(column))

    def _check_depth(self, depth: int) -> None:
        if depth >= DEPTH_MAX:
            raise yaml.YAMLError(f"it is nested more than {DEPTH_MAX} deep")


def load_yaml(text: str | bytes) -> Any:
    """The value of a document.

    Raises:
        yaml.YAMLError: it is no YAML, too long, nested too deeply, or merges too much.
        ValueError: a number or a time in it is none.
    """
    if len(text) > LENGTH_MAX:
        raise yaml.YAMLError(f"it has {len(text)} characters, more than {LENGTH_MAX}")
    try:
        return yaml.load(text, Loader=_BoundedLoader)  # noqa: S506 - a safe loader with bounds
    except (LookupError, AttributeError, TypeError, RecursionError) as exc:
        # The library takes what a tag says (`!!timestamp x`) for granted, and follows a merge of itself for ever.
        raise yaml.YAMLError(
            f"a value of it is not what its tag says, or merges itself ({type(exc).__name__})"
        ) from exc


def yaml_documents(text: str) -> list[tuple[yaml.Node, Any]]:
    """The documents of a text, each as the parser marked it in the text, and its value; empty ones are left out.

    Raises:
        As `load_yaml`, and for an alias, which stands for text in another place.
    """
    if len(text) > LENGTH_MAX:
        raise yaml.YAMLError(f"it has {len(text)} characters, more than {LENGTH_MAX}")
    try:
        marked, plain = _Unshared(text), _Unshared(text)
        found = []
        while marked.check_node() and plain.check_node():
            found.append((marked.get_node(), plain.construct_document(plain.get_node())))
    except (LookupError, AttributeError, TypeError, RecursionError) as exc:
        raise yaml.YAMLError(f"a value of it is not what its tag says ({type(exc).__name__})") from exc
    return [(node, value) for node, value in found if node is not None and value is not None]


class _Unshared(_BoundedLoader):
    """Takes no alias."""

    def fetch_alias(self) -> None:
        raise yaml.YAMLError("it has an alias")
