#!/usr/bin/env bash
# Stage 5: the bare model and the adapters of both stages on the held-out examples: evaluate.sh [cpu|gpu]
# A stage that was not run is left out. Started again, it goes on.
set -euo pipefail
cd "$(dirname "$0")"
run=runs/${1:-cpu} model=$(python -c "from memagent.engines.embedded import default_model as m; print(m())")
budgets="--window-tokens 1024 --problem-tokens 128 --chunk-tokens 200 --memory-tokens 128 --answer-tokens 48"
for length in 4 16; do
    for name in bare imitated reinforced; do
        [ $name = bare ] || [ -d "$run/$name" ] || continue
        adapter=$([ $name = bare ] && echo none || echo "$run/$name") out=$run/eval/$name-$length
        # shellcheck disable=SC2086
        memagent eval --examples "data/held_out/$length.jsonl.gz" --reader gated --reader overwrite \
            --engine transformers --model "$model" --adapter "$adapter" --concurrency 48 $budgets \
            --out "$out" $([ -d "$out" ] && echo --resume)
    done
done
memagent report "$run"/eval/* --out "$run/report"
