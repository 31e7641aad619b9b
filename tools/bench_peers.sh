#!/bin/bash
# Makes the environments that bench/compare.py measures pyengine against, and prints the options to pass.
#
#     bash tools/bench_peers.sh [DIR]        (default build/peers; needs a compiler, ten minutes on two cores)
#
#   native   llama-cpp-python compiled for this CPU (GGML_NATIVE)
#   ik       ik-llama-cpp-python, its AVX2 wheel
#   xllama   xllamacpp, its AVX2 wheel
#
# gcc 12 miscompiles llama.cpp's AMX tile configuration (an illegal instruction at the first long prompt), so where
# the CPU has AMX the native peer is made twice: "native" without AMX, and "native-amx" by clang, if there is one.
set -euo pipefail
dir=$(mkdir -p "${1:-build/peers}" && cd "${1:-build/peers}" && pwd)
python=${PYTHON:-python3}
off="-DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAVA_BUILD=OFF -DLLAMA_CURL=OFF"

venv() { [ -x "$dir/$1/bin/python" ] || "$python" -m venv "$dir/$1"; }
native() { # NAME CC CXX FLAGS
    venv "$1"
    CC=$2 CXX=$3 CFLAGS=$4 CXXFLAGS=$4 CMAKE_ARGS="-DGGML_NATIVE=ON $off" \
        "$dir/$1/bin/python" -m pip install -q --no-binary llama-cpp-python "llama-cpp-python==0.3.36" numpy
}

no_amx=""
if [ "$(uname -m)" = x86_64 ]; then no_amx="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"; fi
native native "${CC:-gcc}" "${CXX:-g++}" "$no_amx"
if grep -qs amx_int8 /proc/cpuinfo && command -v clang++ >/dev/null; then native native-amx clang clang++ ""; fi
venv ik && "$dir/ik/bin/python" -m pip install -q "ik-llama-cpp-python==0.1.5" numpy
venv xllama && "$dir/xllama/bin/python" -m pip install -q xllamacpp
echo "--native-python $dir/native/bin/python --ik-python $dir/ik/bin/python --xllamacpp-python $dir/xllama/bin/python"
