#!/usr/bin/env bash
# Writes the generated modules beside the .proto files, with the oldest generator whose code runs on every supported
# protobuf and grpc runtime (docs/decisions/0002-generated-code.md). Usage: proto/generate.sh PYTHON [OUT_DIR]
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
here=$(cd "$(dirname "$0")" && pwd)
out=${2:-$here}
common=$("$python" -c 'import google.rpc, pathlib; print(pathlib.Path(list(google.rpc.__path__)[0]).parents[1])')
cd "$here"
"$python" -W ignore -m grpc_tools.protoc -I. -I"$common" --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" \
    mindeval/v1/*.proto
