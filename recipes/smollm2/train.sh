#!/usr/bin/env bash
# Runs a round of training and writes its LoRA to runs/NAME/reader.gguf:
# train.sh needles|questions|reinforce|gpu
# When started again, it continues from the newest checkpoint.
set -euo pipefail
cd "$(dirname "$0")"
run=runs/$1
memagent train "$1.toml" --out "$run" --resume
rm -f "$run/reader.gguf"
memagent train export "$run" --to gguf-adapter --out "$run/reader.gguf"
