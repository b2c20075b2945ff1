#!/bin/bash
set -euo pipefail

# --8<-- [start:plan]
record trace
gputide admin replay trace
gputide workloads
gputide plan make --format json -o plan.json
# --8<-- [end:plan]

# --8<-- [start:apply]
gputide plan approve
gputide apply --yes
# --8<-- [end:apply]

# --8<-- [start:verify]
record trace
gputide admin replay trace
gputide verify --format json -o verify.json
# --8<-- [end:verify]

# --8<-- [start:undo]
gputide undo --yes
# --8<-- [end:undo]
