# One verb per job, the same for people and for CI. `make help` lists them.
# Needs Python 3.11 or newer with venv; everything else is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
TEXT ?= The weather is nice today.
TARGET ?= localhost:50051
MODE ?= full
PROFILE ?= sentence
RATE ?= 10
VARIANT ?= cpu
TAG ?= dragoman:$(VARIANT)
export ORT_DISABLE_TELEMETRY := 1

.DEFAULT_GOAL := help
.PHONY: help demo serve translate bench peers-load loadtest capacity capacity-base overload cancellations soak chaos bad-inputs image image-test lock dashboards watching-test envoy-test compose-test manifests kube-play rules test check format proto buf docs clean

help: ## Show the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: $(VENV)/.serve ## Start the server on the shipped model, translate four texts through gRPC, stop it
	@$(BIN)/python -m service demo

serve: $(VENV)/.serve ## Serve the shipped model: gRPC on 50051, metrics on 9464
	@$(BIN)/python -m service serve

translate: $(VENV)/.serve ## Ask a running server: make translate TEXT="..." [TARGET=host:port]
	@$(BIN)/python -m service translate --target "$(TARGET)" -- "$$DRAGOMAN_TEXT"
translate: export DRAGOMAN_TEXT = $(value TEXT)

bench: $(VENV)/.bench ## Compare with CTranslate2, Transformers and PyTorch on this machine: make bench [MODE=short]
	@$(BIN)/python -m loadtests peers bench --mode $(MODE)
	@test $(MODE) = short || $(BIN)/python -m loadtests peers overhead
	@test $(MODE) = short || $(BIN)/python -m loadtests peers server

peers-load: $(VENV)/.bench ## Same calls to servers over CTranslate2 and Transformers: latency, capacity: make peers-load [MODE=short]
	@$(BIN)/python -m loadtests peers load --mode $(MODE)

# What the next three take alike: MODE, PROFILE, METHODS, SLO; of a server that runs already TARGET, METRICS_URL, KEY (a
# file with the API key) and CA (a file with the certificate to trust).
LOAD_FLAGS = --mode $(MODE) --profile "$(PROFILE)" $(if $(METHODS),--methods "$(METHODS)") $(if $(SLO),--slo "$(SLO)") \
	$(if $(filter-out file,$(origin TARGET)),--target "$(TARGET)") $(if $(METRICS_URL),--metrics-url "$(METRICS_URL)") \
	$(if $(KEY),--api-key-file "$(KEY)") $(if $(CA),--ca-file "$(CA)")

loadtest: $(VENV)/.load ## Offer calls, judge latency, write one page: make loadtest [RATE=20] [SLO="p95<400ms"] [TARGET=host:port] [MODE=short]
	@$(BIN)/python -m loadtests load $(LOAD_FLAGS) --rate "$(RATE)" $(if $(BASELINE),--baseline "$(BASELINE)")

capacity: $(VENV)/.load ## Find the highest rate that holds an objective, and latency against load: make capacity [SLO="p95<1s"] [MODE=short]
	@$(BIN)/python -m loadtests capacity $(LOAD_FLAGS)

capacity-base: $(VENV)/.bench ## The same for Transformer-base with random weights
	@flags=$$($(BIN)/python -m loadtests peers prepare --model base) && eval "set -- $$flags" && \
		$(BIN)/python -m loadtests capacity --mode $(MODE) --slo "$(if $(SLO),$(SLO),p95<3s,goodput>99%)" \
		--title "Transformer-base" --output build/capacity-base "$$@"

overload: $(VENV)/.load ## Offer ten times the capacity for a minute: are calls rejected early, with a time to retry after? [MODE=short]
	@$(BIN)/python -m loadtests overload $(LOAD_FLAGS)

cancellations: $(VENV)/.bench ## Make 50,000 calls whose callers leave at any moment: does anything of them stay?
	@$(BIN)/python -m loadtests stress cancellations --mode $(MODE)

soak: $(VENV)/.bench ## Everything at once for half an hour: does anything leak, is anything lost? make soak [MODE=short]
	@$(BIN)/python -m loadtests stress soak --mode $(MODE)

chaos: $(VENV)/.bench bad-inputs ## Inject one fault after the other into a running server: do other callers notice? make chaos [MODE=short]
	@$(BIN)/python -m loadtests stress chaos --mode $(MODE)

bad-inputs: $(VENV)/.bench ## Send 20,000 malformed and extreme inputs: does each get the right status? make bad-inputs [MODE=short]
	@$(BIN)/python -m loadtests stress bad-inputs --mode $(MODE)

image: ## Build the container image with docker or podman: make image [VARIANT=gpu] [TAG=dragoman:cpu]
	@deploy/image/build.sh "$(VARIANT)" "$(TAG)"

image-test: $(VENV)/.serve ## Build the image with an engine of its own and try it as a restricted pod runs it
	@deploy/ci/image_test.sh

lock: $(VENV)/.dev ## Pin what goes into the image, hashes included: make lock [UPGRADE=1]
	@$(BIN)/python deploy/image/lock.py $(if $(UPGRADE),--upgrade)

dashboards: $(VENV)/.dev ## Write Grafana's dashboards from deploy/grafana/*.py
	@$(BIN)/python -m deploy.grafana

watching-test: $(VENV)/.dev ## Run Prometheus, Alertmanager, Envoy and two replicas: does every panel and alert work?
	@$(BIN)/python -m deploy.ci.watching_test

envoy-test: $(VENV)/.load ## Kill, drain and upgrade replicas behind Envoy under load: does a call fail?
	@$(BIN)/python -m deploy.ci.envoy_test

compose-test: $(VENV)/.serve ## Run docker-compose.yml for real, as far as images can be had
	@deploy/ci/compose_test.sh

manifests: $(VENV)/.dev ## Render every overlay and component for Kubernetes and check them strictly, without a cluster
	@$(BIN)/python deploy/ci/manifests_test.py

kube-play: $(VENV)/.dev ## Run the rendered Deployment with podman, under its own security context (needs root)
	@deploy/ci/kube_play_test.sh

rules: $(VENV)/.dev ## Put the rules of deploy/prometheus into the PrometheusRule for Kubernetes
	@$(BIN)/python deploy/kubernetes/render_rules.py

test: check ## Everything CI runs: make check, then all tests
	$(BIN)/python -m pytest

check: $(VENV)/.dev buf ## Format, lint, strict types, import contracts, generated files, proto rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(BIN)/python -m deploy.grafana --check
	$(BIN)/python -m docs.generate --check
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/zizmor --quiet --offline --pedantic .github

format: $(VENV)/.dev ## Format the code and apply the safe fixes of the linter
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(VENV)/.dev ## Regenerate the Python stubs from the .proto and accept the contract if nothing breaks
	$(BIN)/python proto/generate.py
	$(BIN)/python proto/lint.py --accept

buf: $(VENV)/.dev ## Lint the .proto and refuse wire-breaking changes (needs npm)
	@$(BIN)/python proto/lint.py

docs: $(VENV)/.dev ## Generate the reference and build the documentation into build/site; a broken link fails
	@$(BIN)/python -m docs.generate
	@$(BIN)/python -m mkdocs build --quiet --strict --site-dir build/site

clean: ## Remove the virtual environment, caches and what runs under build/
	@[ ! -d build/engine ] || deploy/ci/engine.sh clean
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ...")'
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: pyproject.toml | $(VENV)/bin/python
	@echo "installing what serving needs (no PyTorch) ..."
	@$(PIP) --editable '.[serve]'
	@touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/bin/python
	@echo "installing what the comparison with other systems needs ..."
	@$(PIP) --editable '.[bench]'
	@touch $@ $(VENV)/.serve

$(VENV)/.load: pyproject.toml | $(VENV)/bin/python
	@echo "installing what the load tests need ..."
	@$(PIP) --editable '.[serve,load]'
	@touch $@ $(VENV)/.serve

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing what training, export and the checks need ..."
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.serve $(VENV)/.bench $(VENV)/.load
