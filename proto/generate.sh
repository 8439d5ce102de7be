#!/usr/bin/env bash
# Writes the generated modules beside the .proto files, with the oldest generator whose code runs on every supported
# protobuf and grpc runtime (docs/decisions/0002-generated-code.md).
#
#   proto/generate.sh PYTHON                 beside the .proto files
#   proto/generate.sh PYTHON --out DIR       into DIR
#   proto/generate.sh PYTHON --image FILE    one descriptor set with comments, for buf
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
here=$(cd "$(dirname "$0")" && pwd)
out=$here
common=$("$python" -c 'import google.rpc, pathlib; print(pathlib.Path(list(google.rpc.__path__)[0]).parents[1])')
case "${2:-}" in
    --image)
        image=$(cd "$(dirname "$3")" && pwd)/$(basename "$3")
        cd "$here"
        exec "$python" -W ignore -m grpc_tools.protoc -I. -I"$common" --include_imports --include_source_info \
            --descriptor_set_out="$image" mindeval/v1/*.proto
        ;;
    --out) out=$(cd "$3" && pwd) ;;
esac
cd "$here"
"$python" -W ignore -m grpc_tools.protoc -I. -I"$common" --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" \
    mindeval/v1/*.proto
