#!/bin/bash
set -euo pipefail

# --8<-- [start:plan]
record trace
gputide admin replay trace --until "$(date -u +%FT%TZ)"
gputide workloads
gputide plan make
gputide plan explain tide-0001
# --8<-- [end:plan]
gputide plan show --format json -o plan.json

# --8<-- [start:apply]
gputide plan approve
gputide apply --yes
gputide plan approve --stage 3
# --8<-- [end:apply]
look day.json

# --8<-- [start:evening]
gputide run tide check
ends=$(gputide run tide check --format json | sed -n 's/ *"ends_at": "\(.*\)",/\1/p')
export GPUTIDE_TIDE__LEAD_SECONDS_MIN=$(($(date -d "$ends" +%s) - $(date +%s) - ${NIGHT_SECONDS:-120}))
for step in {1..9}; do
  gputide run tide run --once --yes | tee evening.txt
  if grep -q 'let in' evening.txt; then break; fi
  sleep 1
done
# --8<-- [end:evening]
sleep 3
look night.json

# --8<-- [start:early]
echo 'feed = 1.5' > demand.toml
sleep 2
gputide run tide run --once --yes
# --8<-- [end:early]
sleep 8
look early.json

# --8<-- [start:morning]
until gputide run tide check | grep 'it is give back'; do sleep 1; done
gputide run tide run --once --yes
gputide run tide show
# --8<-- [end:morning]
gputide run tide show --format json -o nights.json
look morning.json

# --8<-- [start:verify]
record trace
gputide admin replay trace
gputide verify --format json -o verify.json
gputide undo --yes
# --8<-- [end:verify]
