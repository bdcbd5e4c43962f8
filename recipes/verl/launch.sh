#!/usr/bin/env bash
# Trains as qwen7b.yaml says, on a running Ray cluster: `ray start --head` on one machine, `ray start
# --address HEAD:6379` on the others. Each needs what docs/verl.md installs, and the examples at the same path.
#
#   MODEL=/models/Qwen2.5-7B-Instruct TRAIN=/data/train.jsonl HELD_OUT=/data/held_out.jsonl OUT=/data/qwen7b \
#       recipes/verl/launch.sh [trainer.nnodes=2 memagent.read.chunk_tokens=2000 ...]
#
# A job does not run in the folder that it was submitted from, so give absolute paths.
set -euo pipefail
: "${MODEL:?the model: a folder on every machine, or an id of the hub}"
: "${TRAIN:?the JSONL file of training examples}"
: "${HELD_OUT:?the JSONL file of held-out examples}"
: "${OUT:?the folder for checkpoints, at one place for all machines}"

exec ray job submit --address "${RAY_DASHBOARD:-http://127.0.0.1:8265}" -- \
	python -m memagent.training.verl \
	--config-dir "$(cd "$(dirname "$0")" && pwd)" --config-name "${CONFIG:-qwen7b}" \
	"actor_rollout_ref.model.path=$MODEL" "data.train_files=$TRAIN" "data.val_files=$HELD_OUT" \
	"trainer.default_local_dir=$OUT" "$@"
