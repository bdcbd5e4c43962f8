#!/usr/bin/env bash
# Makes the examples of all rounds and the held-out ones from a folder of sources: make_data.sh SOURCES
# README.md says what SOURCES must contain and where to get it.
set -euo pipefail
sources=$(realpath "$1")
cd "$(dirname "$0")"

train() {
    python data.py --books "$sources"/books/*.txt.gz --squad "$sources/squadshifts_new_wiki.jsonl.gz" \
        --nq "$sources/nq_open_gold.jsonl.gz" --hotpot "$sources/hotpotqa_dev_distractor.jsonl.gz" "$@"
}
train --out data/needles.jsonl.gz --kinds needles hqa vt --count 1200
train --out data/questions.jsonl.gz --count 800
train --out data/reinforce.jsonl.gz --kinds needles squad nq --count 150 --seed 2
train --out data/gpu.jsonl.gz --count 720 --characters 8000 48000
for length in 4 16; do # chunks of 200 tokens
    python data.py --books "$sources"/held_out/*.txt.gz --squad "$sources/squad_v2_dev.jsonl.gz" --seed 1 \
        --kinds needles squad --count 16 --characters $((length * 800)) $((length * 840)) \
        --out "data/held_out/$length.jsonl.gz"
done
python story.py data/held_out/story.jsonl.gz
