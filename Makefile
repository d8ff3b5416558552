# make install | demo | test | check | test-gpu | clean.  Another Python: make install PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
CXX_FOUND := $(firstword $(foreach tool,$(CXX) c++ g++ clang++,$(shell command -v $(tool) 2>/dev/null)))

.PHONY: help install demo test check test-gpu clean
help:
	@echo 'make install    an environment in .venv with kernelyard and its tools'
	@echo 'make demo       tune rmsnorm on this machine, then show what it does to a small decoder'
	@echo 'make test       the tests; ARGS="tests/store -x" for some'
	@echo 'make check      ruff, mypy --strict, import arrows'
	@echo 'make test-gpu   the tests that need an NVIDIA GPU, by PYTHON as it stands: nothing is installed'
	@echo 'make clean      remove .venv and what the tools left'

install: $(STAMP)

# Anew when a dependency or an entry point may have changed; otherwise nothing to do.
$(STAMP): pyproject.toml scripts/install_torch.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'kernelyard needs Python 3.11 or newer; $(PYTHON) is not. Name one: make install PYTHON=python3.12' >&2; exit 1; }
	@test -n '$(CXX_FOUND)' || { \
	  echo 'kernelyard needs a C++ compiler for its CPU kernels and found none (CXX, c++, g++, clang++). Debian: g++; macOS: xcode-select --install' >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { \
	  echo '$(PYTHON) could not make .venv. On Debian its venv module is a package of its own: python3-venv' >&2; rm -rf .venv; exit 1; }
	$(BIN)/python scripts/install_torch.py
	@echo "kernelyard: the other dependencies and the tools"
	$(PIP) install --quiet --editable '.[dev]'
	@$(BIN)/python -m compileall -q kernelyard
	@touch $(STAMP)

demo: install
	$(BIN)/kernelyard tune rmsnorm
	$(BIN)/kernelyard profile --preset tiny --op rmsnorm

# Files side by side; threads of a kernel that wait asleep, as two spinning teams on two cores stall each other.
test: install
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

check: install
	$(BIN)/ruff check .
	$(BIN)/mypy --strict kernelyard
	$(BIN)/lint-imports

test-gpu:
	$(PYTHON) -m pytest -m gpu $(ARGS)

clean:
	rm -rf .venv build dist *.egg-info examples/*/build examples/*/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
