"""A plan for what Helm installs: a post-renderer that patches a release's manifests on their way to the cluster.

No tool can know which value of a chart sets which field, so the chart's values stay as they are and its output is
patched: `helm upgrade RELEASE CHART --post-renderer ./post-render.sh`. The script hands what it is given to Kustomize
(as a part of kubectl) with the component of `kustomize`. Objects of other releases are left out by hand: Kustomize
refuses patches without an object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
kubectl kustomize "$work"
"""


def helm_files(plan_id: str, patches: Sequence[ObjectPatch]) -> Mapping[str, str]:
    """File name to text: `post-render.sh` and the component that it uses.

    Args:
        plan_id: plan.
        patches: what changes, in order.
    """
    component = {f"component/{name}": text for name, text in kustomize_files(patches).items()}
    return {"post-render.sh": _SCRIPT.format(plan_id=plan_id), **component}
