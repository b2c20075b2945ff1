#!/bin/bash
set -euo pipefail

# --8<-- [start:first]
head -c 40 /dev/urandom > key
record trace
gputide admin replay trace
gputide plan make
# --8<-- [end:first]
gputide plan show --format json -o unprobed.json

# --8<-- [start:probe]
for node in together-node-{0..4}; do
  probe $node -o $node.json
  gputide admin probe keep $node.json
done
probe turns-node-0 --card-mib 32768 -o turns-node-0.json || test $? = 1
gputide admin probe keep turns-node-0.json
gputide admin probe list
# --8<-- [end:probe]

# --8<-- [start:plan]
gputide workloads
gputide plan make
gputide plan approve
gputide apply --yes
# --8<-- [end:plan]
gputide plan show --format json -o plan.json

# --8<-- [start:verify]
record trace
gputide run receive --listen 127.0.0.1:9009 &
trap 'kill $!' EXIT
until (: > /dev/tcp/127.0.0.1/9009) 2> /dev/null; do sleep 0.2; done
gputide admin replay trace --to http://127.0.0.1:9009/api/v1/write
gputide run rollup --drain
gputide verify
# --8<-- [end:verify]
gputide verify --format json -o verify.json

# --8<-- [start:undo]
gputide undo --yes
# --8<-- [end:undo]
