"""Says what is missing or misleads, what that disables, and what mends it; looks only, and changes nothing.

`finding` lists every finding by a code that stays. A module per area (`prometheus`, `cluster` …) makes checks, `checks`
runs them beside each other within bounded times, and `answer` prints what they found. `gputide.verbs.doctor` calls it.
"""
