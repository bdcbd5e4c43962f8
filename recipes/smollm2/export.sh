#!/usr/bin/env bash
# The adapter that the package ships, from a round's newest checkpoint: export.sh NAME
set -euo pipefail
cd "$(dirname "$0")"
rm -f ../../src/memagent/engines/reader.gguf
memagent train export "runs/$1" --to gguf-adapter --out ../../src/memagent/engines/reader.gguf
