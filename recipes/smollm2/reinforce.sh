#!/usr/bin/env bash
# Stage 3: Multi-Conv DAPO, from where the warm start ended: reinforce.sh [cpu|gpu]. Started again, it goes on.
set -euo pipefail
cd "$(dirname "$0")"
name=${1:-cpu} run=runs/${1:-cpu}
memagent train "$name.toml" --out "$run" --resume
rm -rf "$run/reinforced"
memagent train export "$run" --to adapter --out "$run/reinforced"
