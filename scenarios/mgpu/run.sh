#!/bin/bash
set -euo pipefail

# --8<-- [start:plan]
record trace
gputide admin replay trace
gputide workloads
gputide plan make
gputide plan explain colocate-join-0001
# --8<-- [end:plan]
gputide plan show --format json -o plan.json

# --8<-- [start:apply]
gputide plan approve
gputide --all apply
gputide apply --yes
# --8<-- [end:apply]

# --8<-- [start:verify]
record trace
gputide admin replay trace
gputide verify
# --8<-- [end:verify]
gputide verify --format json -o verify.json

# --8<-- [start:undo]
gputide undo --yes
# --8<-- [end:undo]
