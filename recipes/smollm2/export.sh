#!/usr/bin/env bash
# The adapter that the package ships, from a round's newest checkpoint: export.sh NAME
set -euo pipefail
cd "$(dirname "$0")"
out=../../src/memagent/engines/reader.gguf
rm -f "$out.new"
memagent train export "runs/$1" --to gguf-adapter --out "$out.new"
mv "$out.new" "$out"
