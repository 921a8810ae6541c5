# Everything that people and CI do here. `make` alone says what there is.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# `make verify test demo` runs in that order, and runs what two of them share once.
.NOTPARALLEL:

GO ?= go

# What is pinned. Tools are built from source into .tools, and only where the right version is not there already.
BUF_VERSION           := v1.73.0
PROTOC_GEN_GO_VERSION := v1.36.12
GOLANGCI_LINT_VERSION := v2.15.0

TOOLS := $(CURDIR)/.tools
BIN   := $(CURDIR)/bin
BUF   := PATH="$(TOOLS):$$PATH" $(TOOLS)/buf

SERVICES := intake orchestrator lifecycle notifier gateway runner
MAINS    := ./services/drover/cmd/drover $(foreach s,$(SERVICES),./services/$(s)/cmd/drover-$(s))

# A semantic version, with the commit where no tag is on it.
VERSION ?= $(or $(shell git describe --tags --match 'v*' --dirty 2>/dev/null),0.0.0-dev$(addprefix +,$(shell git rev-parse --short=12 HEAD 2>/dev/null)))
LDFLAGS := -s -w -X github.com/droverproject/drover/pkg/host.version=$(VERSION)

TEST_TIMEOUT ?= 5m
FUZZ_TIME    ?= 10s
SIM_FOR      ?= 10m

# Shell: the folders of the modules in go.work, in a variable first, since a failing list must not pass as an empty one.
MODULES := modules=$$($(GO) list -m -f '{{.Dir}}')

##@ Use

.PHONY: help
help: ## Say what there is
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z][a-z0-9-]*:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the programs into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ $(MAINS)

.PHONY: demo
demo: ## Drive a real fleet to its target and back, on an embedded server
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./services/drover/cmd/drover ./examples/fleet/cmd/fleet
	@$(BIN)/fleet demo --drover $(BIN)/drover

.PHONY: bench
bench: build ## Measure phases per second, latency, memory, against raw JetStream
	$(BIN)/drover bench

.PHONY: bench-trees
bench-trees: build ## Measure executions of 100, 1,000 and 10,000 items
	$(BIN)/drover bench trees

.PHONY: bench-fleet
bench-fleet: build ## Measure fleets of 1,000, 10,000 and 100,000 resources (minutes)
	$(BIN)/drover bench fleet

##@ Run in containers

# `docker compose` where it is there, else `docker-compose` (1.29 or newer).
COMPOSE ?= $(if $(shell docker compose version 2>/dev/null),docker compose,docker-compose)
TAG     ?= dev

.PHONY: images
images: ## Build the images of all programs and of the NATS server; no registry is needed
	@VERSION="$(VERSION)" TAG="$(TAG)" deploy/images/make $(BIN)/images

.PHONY: compose-up
compose-up: ## Start Drover on three NATS servers (docker-compose.yml), and wait until all is healthy
	@export DROVER_TAG="$(TAG)"; $(COMPOSE) up -d --remove-orphans && deploy/images/healthy 120 $(COMPOSE)

.PHONY: compose-down
compose-down: ## Stop it, and remove all of it: data, keys and certificates too
	@DROVER_TAG="$(TAG)" $(COMPOSE) down --volumes --remove-orphans

##@ Test

.PHONY: test
test: ## Run every test that needs no container, with the race detector where there is a C compiler
	@race=-race; \
	if ! command -v "$$($(GO) env CC)" >/dev/null; then race=; echo 'no C compiler: the tests run without the race detector'; fi; \
	set -x; $(GO) test $$race -shuffle=on -timeout=$(TEST_TIMEOUT) work

.PHONY: threads
threads: ## Run the thread through every front door on one server and on three, everything killed in its middle (minutes)
	DROVER_THREADS=1 $(GO) test -count=1 -timeout=20m -run 'TestTrees|TestGrove|TestMachines|TestChecks|TestServices|TestCallbacks|TestPlugins|TestTheBucketsFollow' ./deploy/e2e
	DROVER_THREADS=1 $(GO) test -count=1 -timeout=20m -run TestManyReachThePluginInFewCalls ./pkg/plugin

.PHONY: e2e
e2e: images ## Break the cluster of containers in every way, and hold it to its promises (needs Docker; 15 minutes)
	DROVER_CONTAINERS="$(TAG)" DROVER_COMPOSE="$(COMPOSE)" $(GO) test -count=1 -timeout=45m -v -run '^(TestContainers|TestThreadsInContainers)$$' ./deploy/e2e

.PHONY: test-modules-alone
test-modules-alone: ## Build and vet each module as if go.work did not exist
	@$(MODULES); for m in $$modules; do \
	  echo "$${m#$(CURDIR)/}"; \
	  (cd "$$m" && GOWORK=off $(GO) build -o /dev/null ./... && GOWORK=off $(GO) vet ./...); \
	done

.PHONY: sim
sim: ## Simulate the whole house from fresh seeds for SIM_FOR (10m); a seed that fails is printed
	@cd pkg && GOGC=400 DROVER_SIM_FOR=$(SIM_FOR) $(GO) test ./sim -run TestFreshSeeds -count=1 -timeout=0 -v

.PHONY: model
model: ## Bring small systems to every state that bounded inputs can bring them to (minutes; MODEL=more for one more of each)
	@cd pkg/engine && GOGC=400 DROVER_MODEL=$(or $(MODEL),all) $(GO) test ./resource -run 'TestModel$$|TestCanonicalForm|TestSymmetries' -count=1 -timeout=0 -v
	@cd pkg && GOGC=400 DROVER_MODEL=$(or $(MODEL),all) $(GO) test ./drive -run 'TestModel$$|TestModelForms' -count=1 -timeout=0 -v
	@cd pkg/engine && GOGC=400 DROVER_MODEL=$(or $(MODEL),all) $(GO) test ./machine ./deployment ./phase -run 'TestModel$$' -count=1 -timeout=0 -v

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZ_TIME (10s)
	@found=0; \
	while IFS=: read -r file target; do \
	  found=1; dir=$$(dirname "$$file"); echo "$$dir $$target"; \
	  (cd "$$dir" && $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ_TIME) .); \
	done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's/func //' | sort); \
	test $$found = 1

.PHONY: mutate
mutate: ## Plant faults one at a time, and check that the tests find each (minutes; ONLY=name,name for some)
	@$(GO) run .ci/mutate/main.go $(if $(ONLY),-only $(ONLY))

.PHONY: mutants-check
mutants-check: ## Check that every fault that `make mutate` plants still finds its place
	@$(GO) run .ci/mutate/main.go -check

##@ Change

.PHONY: generate
generate: tools ## Generate code from proto/ into proto/gen, and the reference docs from the code
	$(BUF) generate
	@$(MAKE) --no-print-directory generate-docs

# The tests that hold these pages to the code write them.
.PHONY: generate-docs
generate-docs: ## Generate from the code the pages that are rendered from it: the CLI, metrics, subjects, manifests, concepts
	cd pkg && $(GO) test -count=1 -run 'TestPermissionsGolden|Fresh$$|TestDocsTables' ./bus ./asyncapi ./manifest ./schema -update
	cd services/drover && $(GO) test -count=1 -run '^TestReference$$' ./internal/cli ./internal/up -update

.PHONY: fmt
fmt: tools ## Format Go and protobuf sources
	$(MODULES); $(TOOLS)/golangci-lint fmt $$modules
	$(BUF) format -w

.PHONY: tidy
tidy: ## Tidy every go.mod
	@$(MODULES); for m in $$modules; do (cd "$$m" && GOWORK=off $(GO) mod tidy); done

.PHONY: tools
tools: ## Build the pinned tools into .tools
	@install() { \
	  if [[ "$$($(GO) version -m "$(TOOLS)/$$1" 2>/dev/null)" != *$$'\tmod\t'"$$3"$$'\t'"$$4"$$'\t'* ]]; then \
	    echo "building $$1 $$4"; GOWORK=off GOFLAGS= GOBIN="$(TOOLS)" $(GO) install "$$2@$$4"; \
	  fi; \
	}; \
	install buf           github.com/bufbuild/buf/cmd/buf                             github.com/bufbuild/buf                $(BUF_VERSION); \
	install protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go                google.golang.org/protobuf             $(PROTOC_GEN_GO_VERSION); \
	install golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint      github.com/golangci/golangci-lint/v2   $(GOLANGCI_LINT_VERSION)

##@ Verify

.PHONY: verify
verify: check-generated lint breaking tidy-check mutants-check test-modules-alone build test demo ## Run all that CI runs, in its order

.PHONY: check-generated
check-generated: tools ## Check that proto/gen is what proto/ generates
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(BUF) generate -o "$$fresh"; \
	diff -r "$$fresh/proto/gen" proto/gen || { echo 'proto/gen is stale: run `make generate`'; exit 1; }

.PHONY: lint
lint: tools ## Lint Go (directions, purity, mistakes) and protobuf
	$(MODULES); $(TOOLS)/golangci-lint run $$(printf '%s/... ' $$modules)
	$(BUF) lint
	$(BUF) format --diff --exit-code

.PHONY: breaking
breaking: tools ## Check that protobuf still reads what was written before (BREAKING_AGAINST=<revision>)
	@BUF="$(TOOLS)/buf" .ci/breaking

.PHONY: tidy-check
tidy-check: ## Check that every go.mod is tidy and says the same Go version
	@line=$$(grep '^go ' go.work); \
	$(MODULES); for m in $$modules; do \
	  echo "$${m#$(CURDIR)/}"; \
	  (cd "$$m" && GOWORK=off $(GO) mod tidy -diff); \
	  grep -qx "$$line" "$$m/go.mod" || { echo "$$m/go.mod: must say '$$line', as go.work does"; exit 1; }; \
	done

.PHONY: clean
clean: ## Remove what was built (not .tools)
	rm -rf $(BIN)
