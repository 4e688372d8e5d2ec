# Everything here makes what it needs: a virtual environment in .venv, from pinned packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEER := .venv-peer
HARBOR := .venv-harbor
DEMO ?= .closeloop/demo
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test bench quality lint clean

$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(INSTALL) -e . pytest
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(INSTALL) --group test
	touch $@

$(VENV)/.lint: $(VENV)/.base
	$(INSTALL) --group lint
	touch $@

$(PEER)/.made: pyproject.toml
	$(PYTHON) -m venv $(PEER)
	$(PEER)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(PEER)/bin/python -m pip install --quiet --group bench
	touch $@

$(HARBOR)/.made: bench/harbor.txt
	-$(PYTHON) -m venv $(HARBOR) && $(HARBOR)/bin/python -m pip install --quiet \
		--disable-pip-version-check --no-deps --ignore-requires-python -r $< && touch $@

demo: $(VENV)/.base  ## Nine tasks, two scripted agents, graded: about a minute
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo/run $(DEMO)

test: $(VENV)/.test  ## All tests; bubblewrap is installed first where that is possible
	@tests/prepare
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -n 2 $(ARGS)

lint: $(VENV)/.lint $(VENV)/.test  ## Style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.base $(PEER)/.made $(HARBOR)/.made  ## Ratios to floors and peers, measured in one run
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python bench/run.py $(PEER)/bin/python $(HARBOR)/bin/python

quality: $(VENV)/.test  ## How often each rule is right, on labelled traces; ARGS=--write keeps it
	@$(BIN)/python quality/run.py $(ARGS)

clean:
	rm -rf $(VENV) $(PEER) $(HARBOR) .closeloop
