#!/usr/bin/env bash
# Evaluates the bare model and the LoRAs of all rounds on held-out examples: evaluate.sh 4|16|story FLAGS
# FLAGS are those of `memagent eval`, at least --workflow gated. Rounds that were not run are left out. When
# started again, it continues.
set -euo pipefail
cd "$(dirname "$0")"
examples=$1
for round in bare needles questions reinforce gpu; do
    adapter=none window=1024 chunk=200 memory=128 answer=48 # as each was trained
    [ $round = bare ] || adapter=runs/$round/reader.gguf
    [ $adapter = none ] || [ -f $adapter ] || continue
    [ $round != gpu ] || window=2048 chunk=1024 memory=256 answer=64
    memagent eval --examples "data/held_out/$examples.jsonl.gz" --adapter $adapter --problem-tokens 128 \
        --window-tokens $window --chunk-tokens $chunk --memory-tokens $memory --answer-tokens $answer \
        --out "runs/eval/$round-$examples" --resume "${@:2}"
done
memagent report runs/eval/*-"$examples" --out "runs/report-$examples"
