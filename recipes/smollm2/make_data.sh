#!/usr/bin/env bash
# Makes the examples to train on and the held-out ones from a folder of sources: make_data.sh SOURCES
# README.md says what SOURCES must contain and where to get it.
set -euo pipefail
sources=$(realpath "$1")
cd "$(dirname "$0")"

python data.py --novels "$sources"/books/*.gz --sets "$sources"/sets/*.gz --out data/train.jsonl.gz \
    --needles 450 --passages 800
python data.py --novels "$sources"/books/*.gz --sets "$sources"/sets/*.gz --out data/gpu.jsonl.gz \
    --needles 300 --passages 600 --characters 8000 48000
python data.py --novels "$sources"/held_out/*.txt.gz --sets "$sources"/held_out/*.jsonl.gz \
    --out data/held_out/4.jsonl.gz --needles 10 --passages 24 --characters 4000 6400 --seed 1
python story.py data/held_out/story.jsonl.gz
