"""The chart's admission policies for the writer and the agents, made of the table of what they change.

`generate.py` writes them, around what stands in `writer-policy.yaml`. CEL compares each object with what it was: a
field that `enforcer.write_scope` does not name must be as it was.

Sources: kubernetes/website:content/en/docs/reference/using-api/cel.md, google/cel-spec:doc/langdef.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from enforcer.kubernetes.kinds import API_KINDS
from enforcer.write_scope import AGENT_SCOPES, BACKEND_NAMES, SCOPES, SETS, Free, Items, Keys, Scope, Values
from fleet.server_arguments import POOL_BYTES, STATIC_FRACTION, UTILIZATION

_TEMPLATE = Path(__file__).with_name("writer-policy.yaml")
_FLAGS = UTILIZATION, POOL_BYTES, STATIC_FRACTION
_PLAIN = (
    "/events", "events.k8s.io/events", "coordination.k8s.io/leases", "gputide.io/gpuchanges", "gputide.io/gpuplans",
    "gputide.io/gpuplans/status", "gputide.io/gpuplanparts", "gputide.io/gpupolicies/status",
    "gputide.io/clustergpupolicies/status",
)  # fmt: skip
"""What the writer makes and changes of its own, as its roles have it."""
_REVIEWS = ("authorization.k8s.io", "authentication.k8s.io")
_MADE = "resource.k8s.io/resourceclaims", "resource.k8s.io/resourceclaimtemplates"
_BOOKS = "resourceVersion", "managedFields", "generation"
"""What of an object's metadata the API server keeps; the rest must be as it was."""
_INDENT = "        "


def backend_names() -> str:
    """The names of each backend as JSON, for the chart."""
    found = {
        name: {**names.sets, "fields": names.fields, "plugins": names.plugins} for name, names in BACKEND_NAMES.items()
    }
    return json.dumps(found, indent=1) + "\n"


def policy_template() -> str:
    """The template of the chart that holds both policies."""
    scopes = "\n".join(_validations(SCOPES))
    agents = "\n".join(_validations(AGENT_SCOPES))
    known = [*_PLAIN, *_MADE, "/pods/eviction", *(_resource(kind) for kind in SCOPES)]
    return (
        _TEMPLATE.read_text(encoding="utf-8")
        .replace("@SCOPES@", scopes)
        .replace("@AGENTS@", agents)
        .replace("@KNOWN@", _listed(known))
        .replace("@PLAIN@", _listed(_PLAIN))
        .replace("@MADE@", _listed(_MADE))
        .replace("@REVIEWS@", _listed(_REVIEWS))
        .replace("@CHANGED@", _listed(_resource(kind) for kind in SCOPES))
        .replace("@AGENT_CHANGED@", _listed(_resource(kind) for kind in AGENT_SCOPES))
        .replace("@SETS@", "\n".join(_SET.replace("NAME", name) for name in SETS))
    )


def _validations(scopes: Mapping[str, Keys]) -> Iterator[str]:
    alike: dict[str, list[str]] = {}
    for kind, scope in scopes.items():
        alike.setdefault(_same("object", "oldObject", _with_books(scope)), []).append(kind)
    for expression, kinds in alike.items():
        yield f"    - expression: >-\n{_INDENT}!(variables.resource in {_listed(map(_resource, kinds))}) ||"
        own = "variables.isOwn || " if kinds == ["ConfigMap"] else ""
        yield f"{_INDENT}{own}request.operation != 'UPDATE' || ({expression})"
        yield f"      message: fields of a {' or '.join(kinds)} that no plan changes may not be changed by this account"
        yield "      reason: Forbidden"


def _with_books(scope: Keys) -> Keys:
    metadata = scope.fields.get("metadata", Keys())
    assert isinstance(metadata, Keys)
    books: dict[str, Scope] = dict.fromkeys(_BOOKS, Free())
    return Keys(fields={**scope.fields, "metadata": Keys(fields={**metadata.fields, **books})})


def _same(new: str, old: str, scope: Scope, depth: int = 0) -> str:
    """CEL that is true where two values differ only in what a scope frees."""
    key, one, other = f"k{depth}", f"a{depth}", f"b{depth}"
    match scope:
        case Free():
            return "true"
        case Values(each=each):
            inner = _same(f"{new}[{key}]", f"{old}[{key}]", each, depth + 1)
            return f"{old}.all({key}, {key} in {new}) && {new}.all({key}, {key} in {old} && {inner})"
        case Items(each=each, key=name):
            inner = _same(one, other, each, depth + 1)
            return (
                f"{new}.map({key}, {key}.{name}) == {old}.map({key}, {key}.{name}) && "
                f"{new}.all({one}, {old}.exists({other}, {other}.{name} == {one}.{name} && {inner}))"
            )
        case Keys():
            return " && ".join(_same_map(new, old, scope, depth))


def _same_map(new: str, old: str, scope: Keys, depth: int) -> Iterator[str]:
    key, both, name = f"k{depth}", f"p{depth}", f"n{depth}"
    held = [field for field, inner in scope.fields.items() if not (isinstance(inner, Free) and inner.named)]
    held += ["command", "args", "env"] if scope.is_container else []
    free = [f"{key} in {_listed(held)}"] if held else []
    for field, inner in scope.fields.items():
        if isinstance(inner, Free) and inner.named:
            free.append(f"{key} == '{field}' && '{inner.named}' in variables.fields")
    if scope.set_name:
        free.append(f"{key}.matches(variables.{scope.set_name})")
    may = "".join(f"{one} || " for one in free)
    yield f"{new}.all({key}, {may}{key} in {old} && {new}[{key}] == {old}[{key}])"
    yield f"{old}.all({key}, {may}{key} in {new})"
    alike: dict[str, list[str]] = {}
    for field, inner in scope.fields.items():
        if not isinstance(inner, Free):
            empty = "[]" if isinstance(inner, Items) else "{}"
            reach = f"[?{name}].orValue(dyn({empty}))"
            bound = f"[[{new}{reach}, {old}{reach}]].all({both}, {_same(f'{both}[0]', f'{both}[1]', inner, depth + 1)})"
            alike.setdefault(bound, []).append(field)
    yield from (f"{_listed(fields)}.all({name}, {bound})" for bound, fields in alike.items())
    if scope.is_container:
        variables = f".?env.orValue([]).filter({key}, !{key}.name.matches(variables.env))"
        yield f"{new}{variables} == {old}{variables}"
        yield f"{_words(new, key)} == {_words(old, key)}"


def _words(container: str, name: str) -> str:
    """A container's command and arguments without what sets a server's framebuffer."""
    found = f"[({container}.?command.orValue([]) + ['\\u0002'] + {container}.?args.orValue([])).join('\\u0001')]"
    for flag in _FLAGS:
        spelt = flag.removeprefix("--").replace("-", "[-_]")
        pattern = rf"[\\s\\x01]--{spelt}[=\\s\\x01]+[\"\']?[0-9.]+[kmgtKMGT]?[\"\']?"
        found += f".map({name}, {name}.replace({name}.find('{pattern}'), ''))"
    return found


def _resource(kind: str) -> str:
    served = API_KINDS[kind]
    return f"{served.group}/{served.plural}"


def _listed(words: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


_SET = """    - name: NAME
      expression: {{ printf "r'^(%s)$'" (join "|" (uniq $sets.NAME)) | quote }}"""
