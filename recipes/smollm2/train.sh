#!/usr/bin/env bash
# A round of training, and its LoRA in runs/NAME/reader.gguf: train.sh needles|questions|reinforce|gpu
# Started again, it goes on from its newest checkpoint.
set -euo pipefail
cd "$(dirname "$0")"
run=runs/$1
memagent train "$1.toml" --out "$run" --resume
rm -f "$run/reader.gguf"
memagent train export "$run" --to gguf-adapter --out "$run/reader.gguf"
