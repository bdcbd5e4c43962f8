#!/usr/bin/env bash
# Stage 4: the adapter that the package ships, from the newest checkpoint: export.sh [cpu|gpu]
set -euo pipefail
cd "$(dirname "$0")"
rm -f ../../src/memagent/engines/reader.gguf
memagent train export "runs/${1:-cpu}" --to gguf-adapter --out ../../src/memagent/engines/reader.gguf
