#!/bin/bash

# Runs the fuzz targets that "make fuzz" has built, as many at a time as there
# are cores:
#
#     tools/fuzz.sh [TARGET...]
#
# SECONDS_EACH is the time of each, RUNS its number of executions instead.  The
# inputs in t/fuzz/corpus are where it begins.  What it finds on the way is kept
# in build/fuzz/corpus for the next time; an input that fails is left as
# build/fuzz/TARGET.crash-*, and the run fails.

set -euo pipefail

cd "$(dirname "$0")/.."

targets=("$@")

if [ ${#targets[@]} -eq 0 ]; then
    for source in t/fuzz/*.c; do
        targets+=("$(basename "$source" .c)")
    done
fi

if [ -n "${RUNS:-}" ]; then
    bound=-runs=$RUNS
else
    bound=-max_total_time=${SECONDS_EACH:-60}
fi

run()
{
    local name=$1 log=build/fuzz/$1.log

    mkdir -p "build/fuzz/corpus/$name"

    if "build/fuzz/$name" "$bound" -max_len=4096 -print_final_stats=1 \
           -artifact_prefix="build/fuzz/$name." \
           "build/fuzz/corpus/$name" "t/fuzz/corpus/$name" > "$log" 2>&1
    then
        echo "fuzz: $name: $(sed -n \
            's/^stat::number_of_executed_units: //p' "$log") executions," \
            "nothing found"

    else
        tail -n 40 "$log" >&2
        echo "fuzz: $name: see $log" >&2
        return 1
    fi
}

status=0
running=0

for name in "${targets[@]}"; do

    if [ "$running" -eq "$(nproc)" ]; then
        wait -n || status=1
        running=$((running - 1))
    fi

    run "$name" &
    running=$((running + 1))
done

while [ "$running" -gt 0 ]; do
    wait -n || status=1
    running=$((running - 1))
done

exit $status
