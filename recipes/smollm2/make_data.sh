#!/usr/bin/env bash
# Stage 1: the examples of a configuration, from a folder of sources: make_data.sh SOURCES [cpu|gpu]
# SOURCES has books/*.txt.gz, squadshifts_new_wiki.jsonl.gz, hotpotqa_dev_distractor.jsonl.gz and, for what is
# held out, held_out/*.txt.gz and squad_v2_dev.jsonl.gz; README.md says where they are from.
set -euo pipefail
sources=$(realpath "$1") name=${2:-cpu}
cd "$(dirname "$0")"
declare -A count=([cpu]=1200 [gpu]=4000) characters=([cpu]="700 2400" [gpu]="8000 48000")
make() { python data.py --hotpot "$sources/hotpotqa_dev_distractor.jsonl.gz" "$@"; }

# shellcheck disable=SC2086
make --books "$sources"/books/*.txt.gz --squad "$sources/squadshifts_new_wiki.jsonl.gz" \
    --count "${count[$name]}" --characters ${characters[$name]} --out "data/$name/train.jsonl.gz"
for length in 4 16; do # chunks of 200 tokens
    make --books "$sources"/held_out/*.txt.gz --squad "$sources/squad_v2_dev.jsonl.gz" --seed 1 --count 12 \
        --kinds needles wikipedia --characters $((length * 800)) $((length * 840)) \
        --out "data/held_out/$length.jsonl.gz"
done
