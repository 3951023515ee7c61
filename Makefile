PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart test test-slow docs site

# What a user does first: a bare machine with Python >= 3.11 in, a transfer verdict out.
quickstart: $(VENV)/.runtime
	$(BIN)/hpxfer run sweeps/quickstart.yaml

# Two processes of one thread each: on two cores, threads of their own would wait for each other.
# No process that dies is replaced, because pytest-xdist 3.8 would wait for its tests for ever.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --max-worker-restart=0 --no-loadscope-reorder

test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -m "not slow"

# Kills, clusters and jobs, compilers, long trainings, and more random examples of every law.
test-slow: $(VENV)/.test
	HPXFER_EXAMPLES=many $(PYTEST) -m "slow or law"

# The generated parts of README.md and docs/, from code and committed results.
docs: $(VENV)/.runtime
	$(BIN)/python tests/tools/make_docs.py

# docs/ as a website in site/. `$(BIN)/zensical serve` shows it while you edit.
site: $(VENV)/.site
	$(BIN)/zensical build --strict --clean

# torch first, on its own: any other way to get it may bring gigabytes of CUDA along.
$(VENV)/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || \
		{ echo "hpxfer needs Python 3.11 to 3.14, got $$($(PYTHON) --version 2>&1); name another with: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

# mup asks for torchvision and never imports it; its CUDA build beside torch's CPU build breaks `import transformers`.
$(VENV)/.test: $(VENV)/.runtime
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test]'
	$(BIN)/pip uninstall --quiet --yes torchvision
	touch $@

$(VENV)/.site: $(VENV)/.runtime
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@
