#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The engine under Clang's sanitizers: address and undefined behaviour, then threads, each with random calls of every
# function (tests/native/fuzz.py) for the given seconds. Compiling takes about a minute more, once for each state of
# the headers.
#
#     bash scripts/sanitize.sh 60
#     MARCH=x86-64-v3 bash scripts/sanitize.sh 60      # the code for AVX2; x86-64: for SSE2
#     INCLUDE=/tmp/include bash scripts/sanitize.sh 10 # other headers: a copy with a fault in it
#     KINDS=address bash scripts/sanitize.sh tests tests/torch/test_cases.py   # pytest instead of random calls
#
# CLANG: the compiler, 17 or later (Debian: apt-get install clang-19 libclang-rt-19-dev llvm-19); without one it says so
# and succeeds. PYTHON: the interpreter. OUT: where the libraries and logs go. KINDS: "address thread", or one of them.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 60
CLANG=${CLANG:-clang-19}
PYTHON=${PYTHON:-$(command -v python || command -v python3)}
MARCH=${MARCH:-native}
INCLUDE=${INCLUDE:-src/segmentops/native/include}
OUT=${OUT:-out/sanitize}
command -v "$CLANG" > /dev/null || { echo "sanitize: skipped: there is no $CLANG"; exit 0; }

# Functions are called with integers where they take addresses, as ctypes does: -fno-sanitize=function.
declare -A flags=(
  [address]="-fsanitize=address,undefined -fno-sanitize=function -fno-sanitize-recover=all -shared-libsan"
  [thread]="-fsanitize=thread -shared-libsan"
)
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:exitcode=66

failed=0
for kind in ${KINDS:-address thread}; do
  state=$(cat "$INCLUDE"/segment/*.h scripts/sanitize* src/segmentops/native/*.py | sha256sum | cut -c1-12)
  folder=$OUT/$kind-$MARCH-$state
  if [ ! -e "$folder/done" ]; then
    mkdir -p "$folder"
    "$PYTHON" scripts/sanitize.py sources "$folder"
    build="$CLANG -shared -fPIC -g1 -O1 -w ${flags[$kind]}"
    $build scripts/sanitize_pool.c -o "$folder/pool.so"
    printf '%s\n' "$folder"/*.cpp | xargs -P "$(nproc)" -I{} sh -c \
      "$build -std=c++17 -march=$MARCH -I '$INCLUDE' \"\$1\" -o \"\${1%.cpp}.so\"" - {}
    touch "$folder/done"
  fi
  runtime=$(ls "$("$CLANG" -print-resource-dir)"/lib/linux/libclang_rt."${kind:0:1}"san-"$(uname -m)".so)
  echo "sanitize: $kind, $MARCH"
  if [ "$1" = tests ]; then what=(tests "$folder" "${@:2}")
  elif [ $kind = thread ]; then what=(calls "$folder" "$1" sort)
  else what=(calls "$folder" "$1"); fi
  if LD_PRELOAD=$runtime "$PYTHON" scripts/sanitize.py "${what[@]}" > "$folder/log" 2>&1; then
    grep -E "random calls| passed" "$folder/log"
  else
    grep -E -m 1 -A 9 "ERROR: |WARNING: Thread|runtime error|Error: " "$folder/log" || tail -n 20 "$folder/log"
    echo "sanitize: $kind FAILED, see $folder/log"
    failed=1
  fi
done
exit $failed
