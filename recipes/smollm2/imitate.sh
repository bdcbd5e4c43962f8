#!/usr/bin/env bash
# Stage 2: the warm start on the oracle's memories: imitate.sh [cpu|gpu]. Started again, it goes on.
set -euo pipefail
cd "$(dirname "$0")"
name=${1:-cpu} run=runs/${1:-cpu}
memagent train sft "$name.toml" --out "$run" $([ -d "$run/checkpoints" ] && echo --resume)
rm -rf "$run/imitated"
memagent train export "$run" --to adapter --out "$run/imitated"
