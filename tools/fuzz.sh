#!/bin/sh
# Fuzzes the GGUF header scanner with libFuzzer under ASan and UBSan, then, a hundredth as often, the tokenizers without
# merges, whose runs are longer.
#
#   tools/fuzz.sh [RUNS]      RUNS executions, default 20000000, shared among the cores
#
# Needs clang with its runtime; on Debian and Ubuntu: apt-get install clang-14 libclang-rt-14-dev
# (any newer pair does). CLANG=... names another. The corpus stays in build/fuzz/corpus, so a
# later run goes on from it; a finding is left in build/fuzz as crash-*, and the exit code is not 0.
set -eu
cd "$(dirname "$0")/.."
runs=${1:-${FUZZ_RUNS:-20000000}}
jobs=$(getconf _NPROCESSORS_ONLN)
out=build/fuzz

if [ -z "${CLANG:-}" ]; then
  for c in clang clang-21 clang-20 clang-19 clang-18 clang-17 clang-16 clang-15 clang-14; do
    if command -v "$c" >/dev/null; then CLANG=$c; break; fi
  done
fi
if [ -z "${CLANG:-}" ]; then
  echo "tools/fuzz.sh: no clang found: on Debian and Ubuntu, apt-get install clang-14 libclang-rt-14-dev" >&2
  exit 1
fi
python=python3
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi

mkdir -p "$out/corpus" "$out/seeds" "$out/corpus-tokens"
flags="-std=gnu11 -O2 -g -Wall -fno-omit-frame-pointer -Icsrc -fsanitize=fuzzer,address,undefined,integer
  -fno-sanitize=unsigned-integer-overflow,unsigned-shift-base,implicit-conversion -fno-sanitize-recover=all"
"$CLANG" $flags -DPE_GGUF_FIRST_READ=64 -o "$out/fuzz_gguf" tests/fuzz/fuzz_gguf.c csrc/gguf.c csrc/types.c
"$CLANG" $flags -o "$out/fuzz_tokens" tests/fuzz/fuzz_tokens.c csrc/trie.c csrc/longest.c csrc/unigram.c
"$python" tests/faults_gguf.py "$out/seeds"

# One process per core, each its share; every one writes what it finds into the common corpus.
each=$(( (runs + jobs - 1) / jobs ))
pids=
for i in $(seq "$jobs"); do
  "$out/fuzz_gguf" -runs="$each" -seed="$i" -max_len=4096 -timeout=5 -rss_limit_mb=1024 -reload=30 -print_final_stats=1 \
    -artifact_prefix="$out/" "$out/corpus" "$out/seeds" >"$out/log-$i" 2>&1 &
  pids="$pids $!"
done
bad=0
for p in $pids; do wait "$p" || bad=1; done
"$out/fuzz_tokens" -runs=$((runs / 100)) -seed=1 -max_len=2048 -timeout=10 -rss_limit_mb=1024 -artifact_prefix="$out/" \
  "$out/corpus-tokens" >"$out/log-tokens" 2>&1 || bad=1
total=0
for i in $(seq "$jobs"); do
  n=$(sed -n 's/^stat::number_of_executed_units: *//p' "$out/log-$i")
  total=$((total + ${n:-0}))
  grep -h -E '[[:space:]]DONE[[:space:]]' "$out/log-$i" || true
done
if [ "$bad" -ne 0 ]; then
  tail -n 40 "$out"/log-*
  echo "tools/fuzz.sh: a finding, see $out/crash-* and the logs" >&2
  exit 1
fi
echo "tools/fuzz.sh: $total executions, no finding, corpus of $(ls "$out/corpus" | wc -l) files"
