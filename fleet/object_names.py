"""Names that objects of Kubernetes can have, and who may own a pod by them.

Names come from people: the API server checks those of pods, namespaces and containers, but takes any text as name and
kind of an owner (`ownerReferences`), and a metric or a recorded fleet may say anything. A workload is written
`namespace/Kind/name`, so each edge asks here before it believes a name: a trace with others is refused, a sighting
of such a pod is refused and counted, and an owner that can't be owns nothing: its pod stands for itself.

Source: kubernetes:staging/src/k8s.io/apimachinery/pkg/util/validation (IsDNS1123Label, IsDNS1123Subdomain), of kinds
kubernetes:staging/src/k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation (names of a definition).
"""

from __future__ import annotations

import re

NAME_LENGTH_MAX = 253
"""Characters of an object's name."""
LABEL_LENGTH_MAX = 63
"""Characters of a namespace's or a container's name, or of a kind."""

_PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_PART}(\.{_PART})*", re.ASCII)
_LABEL = re.compile(_PART, re.ASCII)
_KIND = re.compile("[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?", re.ASCII)

NAME_WORDS = f"expected up to {NAME_LENGTH_MAX} of a-z, 0-9, - and ."
LABEL_WORDS = f"expected up to {LABEL_LENGTH_MAX} of a-z, 0-9 and -"
KIND_WORDS = f"expected up to {LABEL_LENGTH_MAX} letters, digits and -"


def is_name(text: str) -> bool:
    """Whether an object can be called so (RFC 1123 subdomain)."""
    return len(text) <= NAME_LENGTH_MAX and _NAME.fullmatch(text) is not None


def is_label(text: str) -> bool:
    """Whether a namespace or a container can be called so (RFC 1123 label)."""
    return len(text) <= LABEL_LENGTH_MAX and _LABEL.fullmatch(text) is not None


def is_kind(text: str) -> bool:
    """Whether a kind of object can be called so."""
    return len(text) <= LABEL_LENGTH_MAX and _KIND.fullmatch(text) is not None


def can_own(kind: str, name: str) -> bool:
    """Whether an owner of this kind and name can be."""
    return is_kind(kind) and is_name(name)
