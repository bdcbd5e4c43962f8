#!/usr/bin/env bash
# The bare model and the adapters of all rounds on the held-out examples: evaluate.sh [EXAMPLES [READER ...]]
# 4 or 16 (chunks), or story; gated and overwrite. A round that was not run is left out. Started again, it goes on.
set -euo pipefail
cd "$(dirname "$0")"
examples=${1:-4} readers=("${@:2}")
[ $# -gt 1 ] || readers=(gated overwrite)
model=$(python -c "from memagent.engines.embedded import default_model as m; print(m())")
for reader in "${readers[@]}"; do
    for round in bare needles questions reinforce gpu; do
        [ $round = bare ] || [ -d "runs/$round/adapter" ] || continue
        adapter=$([ $round = bare ] && echo none || echo "runs/$round/adapter")
        window=1024 chunk=200 memory=128 answer=48 # as each was trained
        [ $round != gpu ] || window=2048 chunk=1024 memory=256 answer=64
        memagent eval --examples "data/held_out/$examples.jsonl.gz" --reader "$reader" --engine transformers \
            --model "$model" --adapter "$adapter" --concurrency 192 --problem-tokens 128 \
            --window-tokens $window --chunk-tokens $chunk --memory-tokens $memory --answer-tokens $answer \
            --out "runs/eval/$round-$reader-$examples" --resume
    done
done
memagent report runs/eval/*-"$examples" --out "runs/report-$examples"
