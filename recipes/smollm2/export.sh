#!/usr/bin/env bash
# Stage 4: the adapter that the package ships: export.sh [cpu|gpu]
set -euo pipefail
cd "$(dirname "$0")"
run=runs/${1:-cpu}
rm -rf "$run/reinforced" ../../src/memagent/engines/reader.gguf
memagent train export "$run" --to adapter --out "$run/reinforced"
memagent train export "$run" --to gguf-adapter --out ../../src/memagent/engines/reader.gguf
