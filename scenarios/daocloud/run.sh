#!/bin/bash
set -euo pipefail

# --8<-- [start:modes]
gputide admin node mode models-node-2
gputide admin node mode models-node-1 whole --yes
gputide admin node mode models-node-2 mig --yes
gputide admin node mode apps-node-2 vgpu --slices 4 --yes
# --8<-- [end:modes]
for node in models-node-1 models-node-2 apps-node-2; do
  gputide admin node mode $node --format json -o $node.json
done

# --8<-- [start:plan]
record trace
gputide admin replay trace
gputide workloads --format json -o workloads.json
gputide plan make --format json -o plan.json
gputide plan approve
gputide apply --yes
# --8<-- [end:plan]

# --8<-- [start:verify]
record trace
gputide admin replay trace
gputide verify --format json -o verify.json
# --8<-- [end:verify]

# --8<-- [start:alerts]
gputide admin grafana export grafana
promtool test rules alerts.yaml
# --8<-- [end:alerts]

# --8<-- [start:bill]
gputide cost prices set 'NVIDIA A10' '0.9 USD'
gputide cost prices set 'NVIDIA A100-SXM4-40GB' '2.4 USD'
for by in cluster node model namespace team workload pod; do
  gputide cost show --by $by --format json -o bill-$by.json
done
# --8<-- [end:bill]

# --8<-- [start:undo]
gputide undo --every-plan --yes
# --8<-- [end:undo]
for node in models-node-1 models-node-2 apps-node-2; do
  gputide admin node mode $node --format json -o $node-undone.json
done
