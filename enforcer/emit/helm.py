"""A plan for what Helm installs: a post-renderer that patches a release's manifests on their way to the cluster.

No tool can know which value of a chart sets which field, so the chart's values stay as they are and its output is
patched: `helm upgrade RELEASE CHART --post-renderer ./post-render.sh`. The script hands what it is given to Kustomize
(as a part of kubectl) with the component of `kustomize`. Patches of objects of other releases do nothing; a release of
which the plan changes nothing at all is refused, for it is the wrong one, or its manifests are others than the plan's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enforcer.admission import PLAN_ANNOTATION
from enforcer.emit.kustomize import kustomize_files
from enforcer.emit.object_patch import ObjectPatch

_SCRIPT = """#!/bin/sh
# Patches a Helm release with plan {plan_id}: helm upgrade RELEASE CHART --post-renderer ./post-render.sh
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$here/component" "$work/component"
cat > "$work/all.yaml"
printf 'resources: [all.yaml]\\ncomponents: [component]\\n' > "$work/kustomization.yaml"
kubectl kustomize "$work" > "$work/patched.yaml"
grep -Eq '^ *{mark}: "?{plan_id}"?$' "$work/patched.yaml" || {{
  echo "cannot patch this release: plan {plan_id} changes none of its objects" >&2
  exit 1
}}
cat "$work/patched.yaml"
"""


def helm_files(plan_id: str, patches: Sequence[ObjectPatch], made: Sequence[str] = ()) -> Mapping[str, str]:
    """File name to text: `post-render.sh` and the component that it uses.

    Args:
        patches: what changes, in order.
        made: objects of our own that must be there first, as YAML.
    """
    component = {f"component/{name}": text for name, text in kustomize_files(patches, made).items()}
    return {"post-render.sh": _SCRIPT.format(plan_id=plan_id, mark=PLAN_ANNOTATION.replace(".", "\\.")), **component}
