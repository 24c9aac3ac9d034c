#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that only a GPU can say, in under six minutes: tests, bits, compute-sanitizer, times. The limits of the
# steps add up to 350 s.
#
#     bash scripts/gpu_check.sh                              # logs and a CSV in out/
#     PYTHONPATH=/tmp/site:src bash scripts/gpu_check.sh     # where packages are in /tmp/site
#
# OUT: where the logs go; PYTHON: the interpreter. Without a GPU it says so and succeeds. Needs neither an installed
# package nor Warp's CPU compiler: what the engine says is in scripts/engine_bits.json.
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-out}
PYTHON=${PYTHON:-$(command -v python || command -v python3)}
export PYTHONPATH="${PYTHONPATH:-src}"
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)

why=$("$PYTHON" - <<'END' 2>&1
import sys
sys.path.insert(0, "src")
try:
    import torch, warp
except ImportError as error:
    sys.exit(f"{error}")
if not torch.cuda.is_available():
    sys.exit("torch sees no CUDA device")
warp.config.log_level = 30
warp.init()
if not warp.is_cuda_available():
    sys.exit("Warp sees no CUDA device")
END
) || { echo "gpu_check: skipped: ${why##*$'\n'}" | tee "$OUT/gpu_check.log"; exit 0; }

failed=0
started=$SECONDS
: > "$OUT/gpu_check.log"
# step NAME SECONDS COMMAND...: runs it with a limit, into a log of its own
step() {
  local name=$1 limit=$2 from=$SECONDS status
  shift 2
  timeout -k 5 "$limit" "$@" > "$OUT/$name.log" 2>&1
  status=$?
  [ $status -eq 0 ] && verdict=passed || { verdict="FAILED (status $status; 124: over $limit s)"; failed=1; }
  echo "$name: $verdict, $((SECONDS - from)) s" | tee -a "$OUT/gpu_check.log"
  [ $status -eq 0 ] || tail -n 25 "$OUT/$name.log"
}

(nvidia-smi || true) > "$OUT/nvidia-smi.log" 2>&1
step compile 80 "$PYTHON" scripts/gpu_bits.py compile
step tests 90 "$PYTHON" -m pytest -q -p no:cacheprovider tests/torch/test_on_gpu.py tests/warp/test_launchers_on_gpu.py
step jax 40 env XLA_PYTHON_CLIENT_PREALLOCATE=false "$PYTHON" -m pytest -q -p no:cacheprovider tests/jax/test_on_gpu.py
step bits 50 "$PYTHON" scripts/gpu_bits.py check
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
if [ -n "$sanitizer" ]; then
  step sanitizer 40 "$sanitizer" --tool memcheck --error-exitcode 3 "$PYTHON" scripts/gpu_bits.py small
else
  echo "sanitizer: skipped: there is no compute-sanitizer" | tee -a "$OUT/gpu_check.log"
fi
step timing 50 "$PYTHON" scripts/gpu_timing.py "$OUT/gpu_timing.csv" 35
cat "$OUT/bits.log"
echo "gpu_check: $([ $failed -eq 0 ] && echo passed || echo FAILED) in $((SECONDS - started)) s; logs in $OUT"
exit $failed
