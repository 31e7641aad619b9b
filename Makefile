# run, test, test-long, test-arm, bench, table, check, wheels. Everything lands in .venv and build/; models in the
# user's cache (PYENGINE_CACHE moves it). Stamps keep a repeated make quick.
# PYTHON=python3.12 make ... chooses the interpreter, CC=clang the compiler.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check -q
PROMPT  ?= Explain in one sentence why the sky is blue.
SOURCES := setup.py $(wildcard csrc/*.c csrc/*.h)

.NOTPARALLEL:
.PHONY: all run test test-long test-arm bench table table-speeds check check-tests check-threads check-fuzz check-oracle check-serve models wheels clean
all: $(VENV)/.native

run: $(VENV)/.native
	@$(BIN)/python -m pyengine.cli.pull smollm2 >/dev/null
	$(BIN)/pyengine-cli -m smollm2 -p "$(PROMPT)" -n 64

test: $(VENV)/.test $(VENV)/.native models
	$(BIN)/python -m pytest -m "not long and not campaign" $(TESTS)

test-long: $(VENV)/.test $(VENV)/.wheels $(VENV)/.native models
	$(BIN)/python -m pytest -m "long and not campaign" $(TESTS)

# The wheels on emulated CPUs: ARM, and x86 without AVX2 (tools/emulate.py). ARM=--short is what CI runs, ARM="--only smollm2" some of it.
test-arm: $(VENV)/.test $(VENV)/.wheels $(VENV)/.native models
	$(BIN)/python tools/emulate.py test $(ARM)

# Kernels and ops on their own, then beside the peers that PYENGINE_BENCH_* name (bench/compare.py; BENCH= passes options), and the server.
bench: $(VENV)/.bench $(VENV)/.native models
	$(BIN)/python bench/kernels.py
	$(BIN)/python bench/ops.py
	$(BIN)/python bench/compare.py $(BENCH)
	$(BIN)/python bench/serve.py

# docs/models.md's tables of tensor types and architectures from the code; table-speeds measures its speeds first: a quiet machine for some minutes.
table: $(VENV)/.native
	$(BIN)/python tools/type_table.py
	$(BIN)/python tools/arch_table.py

table-speeds: $(VENV)/.bench $(VENV)/.native
	$(BIN)/python tools/type_table.py --measure

# Every platform's wheel into dist/ (docs/platforms.md); WHEELS= names some: make wheels WHEELS="linux-armv7l macos-arm64".
wheels: $(VENV)/.wheels
	$(BIN)/python tools/wheels.py $(WHEELS)

# The two models that the tests and benches read.
models: $(VENV)/.native
	@$(BIN)/python -m pyengine.cli.pull smollm2 gemma-3-270m >/dev/null

# ---- the environment -----------------------------------------------------------
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "pyengine needs Python 3.10 or newer; '$(PYTHON)' is missing or older (PYTHON=... names another)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# --no-build-isolation: one copy of setuptools and cffi, shared with build_ext below. Installing
# compiles the extension in place; the tests' environment is installed in one go, so that a fresh
# `make test` compiles once.
INSTALL := $(PIP) install "setuptools>=77" "cffi>=1.16" wheel && $(PIP) install --no-build-isolation -e

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	$(INSTALL) .
	@touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml
	$(INSTALL) ".[test]"
	@touch $@ $(VENV)/.installed

$(VENV)/.bench: $(VENV)/.test
	$(PIP) install --no-build-isolation -e ".[test,bench]"
	@touch $@

$(VENV)/.wheels: $(VENV)/.made pyproject.toml
	$(INSTALL) ".[wheels]"
	@touch $@ $(VENV)/.installed

$(VENV)/.native: $(VENV)/.installed $(SOURCES)
	@so=$$(ls -t pyengine/_native*.so 2>/dev/null | head -n 1); \
	if [ -z "$$so" ] || [ -n "$$(find $(SOURCES) -newer "$$so")" ]; then \
	  echo "$(BIN)/python setup.py -q build_ext --inplace"; $(BIN)/python setup.py -q build_ext --inplace; fi
	@touch $@

# ---- sanitizers and fuzzers ------------------------------------------------------
# The suite runs in a copy of the tree whose extension is built with ASan and UBSan.
# build/shared lets tests find ../shared from there as well. Leaks are not looked for:
# the interpreter's own would drown ours. --capture=sys: a report goes to descriptor 2, and ends the process with it.
CHECK     := build/check
SANITIZE  := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1
CHECK_SRC := $(wildcard setup.py pyproject.toml Makefile README.md csrc pyengine models tests tools bench docs)

check: check-tests check-threads check-fuzz check-oracle check-serve

check-tests: $(VENV)/.test models
	rm -rf $(CHECK) && mkdir -p $(CHECK)
	tar cf - --exclude='*.so' --exclude=__pycache__ $(CHECK_SRC) | tar xf - -C $(CHECK)
	@if [ -d ../shared ]; then ln -sfn ../../shared build/shared; fi
	cd $(CHECK) && CC="$${CC:-gcc}" CFLAGS="$(SANITIZE)" LDFLAGS="$(SANITIZE)" \
	  ../../$(BIN)/python setup.py -q build_ext --inplace
	cd $(CHECK) && LD_PRELOAD="$$(gcc -print-file-name=libasan.so):$$(gcc -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  PYTHONPATH=. PYENGINE_SANITIZED=1 ../../$(BIN)/python -m pytest -m "not long and not campaign" -p no:cacheprovider --capture=sys $(TESTS)

# The thread pool under the thread sanitizer.
check-threads:
	@mkdir -p build
	$${CC:-gcc} -std=gnu11 -O1 -g -fsanitize=thread -Icsrc tests/fuzz/stress_pool.c csrc/pool.c -o build/stress_pool -pthread
	build/stress_pool

# Both models beside llama.cpp at full length.
check-oracle: $(VENV)/.test $(VENV)/.native models
	PYENGINE_CAMPAIGN=1 $(BIN)/python -m pytest -s -m "long or campaign" tests/test_oracle_real.py tests/test_one_answer.py tests/test_faults_load.py

# 500 mixed requests under every setting, each compared with itself alone; 20,000 requests made up from the server's description.
check-serve: $(VENV)/.test $(VENV)/.native models
	PYENGINE_CAMPAIGN=1 $(BIN)/python -m pytest -s -m "long or campaign" tests/test_serve_mixed.py tests/test_serve_schemathesis.py

check-fuzz: $(VENV)/.test
	bash tools/fuzz.sh

clean:
	rm -rf build dist *.egg-info pyengine/_native*.so pyengine/_native.c $(VENV)
