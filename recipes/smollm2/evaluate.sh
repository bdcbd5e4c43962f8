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
        out=runs/eval/$round-$reader-$examples
        # shellcheck disable=SC2046
        memagent eval --examples "data/held_out/$examples.jsonl.gz" --reader "$reader" --engine transformers \
            --model "$model" --adapter "$adapter" --concurrency 192 --window-tokens 1024 --problem-tokens 128 \
            --chunk-tokens 200 --memory-tokens 128 --answer-tokens 48 \
            --out "$out" $([ -d "$out" ] && echo --resume)
    done
done
memagent report runs/eval/*-"$examples" --out "runs/report-$examples"
