# `make demo` and `make test` each set up everything they need, from nothing but python3 and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Most tests wait for Codex, so there may be more of them at once than processors.
WORKERS ?= 6
CLIENTS := $(or $(HELMSMAN_CLIENTS_CACHE),.cache/clients)

# Every worker, and every process that a test starts, would compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup clients fetch demo demo-fleet day test test-all cover matrix release-check bench bench-outcomes bench-check bench-fleet simulate-fleet fuzz soak soak-fleet lint types audit format dist site goldens images reference architecture sandbox-table constraints clean

help: ## Show what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[codex,fleet]"

$(VENV)/.pip: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Helmsman needs Python 3.11 or newer. Name one: make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.runtime: $(VENV)/.pip
	@echo "Installing Helmsman with a Codex: about 150 MB, a minute or two."
	$(INSTALL)
	@touch $@

$(VENV)/.dev: $(VENV)/.pip
	$(INSTALL) --group dev
	@touch $(VENV)/.runtime $@

setup: $(VENV)/.dev ## Make a virtual environment with everything in it

demo: $(VENV)/.runtime ## Real Codex on a scripted model: a command, a change, an approval; no account needed
	@$(BIN)/helmsman demo $(DEMO)

demo-fleet: $(VENV)/.dev ## A Postgres, three workers as three machines, twenty tasks, one machine killed: all done, none twice
	@$(BIN)/python -m scripts.demo_fleet $(DEMO)

# Without the npm registry this fails, and the tests with those clients are skipped.
$(CLIENTS)/installed.json: scripts/fetch_clients.py | $(VENV)/.dev
	-@$(BIN)/python scripts/fetch_clients.py

clients: $(CLIENTS)/installed.json ## Fetch the MCP clients that the tests use from the npm registry

fetch: $(VENV)/.dev $(CLIENTS)/installed.json ## Fetch what the tests need from the npm registry: MCP clients, the Codex versions of the matrix
	$(BIN)/python scripts/fetch_codex.py

test: $(VENV)/.dev ## Run the tests, but for the long ones, on the Codex of the PyPI wheel: about six minutes on two processors
	@$(BIN)/python -c "from hypothesis.internal.charmap import charmap; charmap()" # once, not in every worker
	scripts/in_memory.sh $(BIN)/pytest -m "not matrix and not long and not rare" -n $(WORKERS) --dist worksteal $(TEST)

test-all: fetch ## Run what CI runs: the long tests too, and those of all Codex versions, most on two of them; the rest is left to `make matrix`
	$(MAKE) test TEST='-m "not rare" --few-versions $(TEST)'

cover: fetch ## Run what CI runs and what is rare, and measure branch coverage, in hubs, supervisors and workers too (at least 94 %)
	$(BIN)/python scripts/with_hubs_measured.py $(MAKE) test TEST='-m "" --few-versions --cov --cov-report=term $(TEST)'

matrix: $(VENV)/.dev ## Run the matrix of Codex versions, the stories of the other agents and the tests marked rare, and write docs/compatibility.md
	$(BIN)/python scripts/fetch_codex.py
	-$(BIN)/python scripts/fetch_agents.py
	$(BIN)/pytest -m "matrix or story or rare" -n $(WORKERS) $(TEST)
	$(BIN)/python scripts/compatibility.py

release-check: fetch ## Run everything once, before a release: style, types, dependencies, all tests on all versions, the rare ones too, the bounds
	$(MAKE) lint types audit
	-$(BIN)/python scripts/fetch_agents.py
	$(MAKE) test TEST='-m "" $(TEST)'
	$(BIN)/python scripts/compatibility.py
	$(MAKE) bench-check

bench: $(VENV)/.dev ## Measure Helmsman beside Codex itself and its peers, and write docs/appendix/performance.md
	$(BIN)/python scripts/fetch_codex.py 0.145.0
	$(BIN)/python -m bench $(BENCH)

day: $(VENV)/.dev ## Play a working day in a terminal, a browser and on a phone, and check that nothing is lost, wrong or a dead end
	$(BIN)/python -m bench.day $(BENCH)

bench-outcomes: $(VENV)/.dev ## Play 66 small tasks with honest, sloppy and lying agents, and write docs/appendix/outcomes.md
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m bench.outcomes $(BENCH)

bench-check: $(VENV)/.dev ## Compare the few ratios that matter most with bench/bounds.toml, in under a minute
	$(BIN)/python scripts/fetch_codex.py 0.145.0
	$(BIN)/python -m bench --check $(BENCH)

fuzz: $(VENV)/.dev ## Run the fuzz tests again and again with new random numbers (SECONDS=600)
	$(BIN)/python scripts/fuzz.py --seconds $(or $(SECONDS),120)

soak: $(VENV)/.dev ## Twice 200 hubs killed, then ten minutes of faults of all kinds (KILLS=20, MINUTES=2, SEED=…), and write docs/appendix/reliability.md
	$(BIN)/python -m bench.soak --kills $(or $(KILLS),200) --due $(or $(KILLS),200) --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) --report docs/appendix/reliability.md

bench-fleet: $(VENV)/.dev ## Measure a fleet's queue, events, answers and takeovers on a Postgres of its own, and write docs/appendix/fleet.md
	$(BIN)/python -m bench.fleet $(BENCH)

simulate-fleet: $(VENV)/.dev ## A hundred workers with scripted agents on one Postgres, thirty of them killed at once, into docs/appendix/fleet.md
	$(BIN)/python -m bench.fleet.simulation $(BENCH)

soak-fleet: $(VENV)/.dev ## Ten minutes of a fleet with machines, engines, hubs, doors and Postgres killed or stopped at random (MINUTES=2, SEED=…), into docs/appendix/reliability.md
	$(BIN)/python -m bench.fleet.soak --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) --report

lint: $(VENV)/.dev ## Check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev ## Check types, strictly
	$(BIN)/mypy
	$(BIN)/mypy bench

audit: $(VENV)/.dev ## Check the dependencies: versions, and known vulnerabilities where the index tells of them
	$(BIN)/python scripts/audit_dependencies.py

format: $(VENV)/.dev ## Put the code into shape
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

goldens: $(VENV)/.dev ## Record the transcripts of every Codex version again
	$(BIN)/python scripts/fetch_codex.py
	$(BIN)/python scripts/record_goldens.py --update

images: $(VENV)/.dev ## Make the pictures of the documentation again
	$(BIN)/python -m scripts.make_images
	$(BIN)/python -m scripts.make_screenshots

reference: $(VENV)/.dev ## Write the pages that are made from the code: commands, reference, events, the tests behind docs/security.md
	$(BIN)/python scripts/make_commands.py
	$(BIN)/python scripts/make_verbs.py
	$(BIN)/python scripts/make_reference.py
	$(BIN)/python scripts/make_events.py
	$(BIN)/python scripts/make_evidence.py

architecture: $(VENV)/.dev ## Draw the packages into docs/architecture.md
	$(BIN)/python -m tests.architecture

sandbox-table: $(VENV)/.dev ## Draw what agents see in their sandboxes into docs/appendix/sandbox.md
	$(BIN)/python -m tests.sandbox_table

constraints: $(VENV)/.dev ## Write constraints.txt from what is installed
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '@' > constraints.txt

dist: $(VENV)/.pip ## Build sdist and wheel reproducibly, with a bill of materials, and try them in an empty environment
	$(BIN)/python scripts/make_dist.py

site: ## Build the website from docs/ into site/; its pages also open from a disk, and load nothing from elsewhere
	@test -x .cache/site/bin/mkdocs || ($(PYTHON) -m venv .cache/site && .cache/site/bin/pip install --quiet "mkdocs-material>=9.6,<10")
	NO_MKDOCS_2_WARNING=1 .cache/site/bin/mkdocs build --quiet --strict

clean: ## Remove what make made
	rm -rf site $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis htmlcov .coverage .coverage.* dist
