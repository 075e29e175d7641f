# Copyright The Kubewright Authors
# SPDX-License-Identifier: Apache-2.0
#
# A new machine needs Go, git, make, and gcc for the race detector; every target
# installs what else it needs through the Go module proxy. `make` alone prints the
# targets.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# Nested modules: their requirements stay out of the root go.mod.
MODULES := $(patsubst %/go.mod,%,$(shell git ls-files '*/go.mod' | grep -v testdata))
# Those that are tested with the root; bench and test/controlplane have targets of their own.
# The longest tests come first, so that none of them runs alone at the end.
EXAMPLES := vkadapter nodeapi $(filter apitest/% election/% examples/%,$(MODULES))
# The build's results don't depend on the clone's directory, so that Go's cache serves all clones of a machine.
export GOFLAGS := $(filter-out -trimpath,$(shell $(GO) env GOFLAGS 2>/dev/null)) -trimpath
# Packages of the root module with benchmarks.
BENCHMARKED = $(addprefix ./,$(sort $(dir $(shell git grep -lE '^func Benchmark' -- '*_test.go' $(MODULES:%=':!%')))))
# One test of a bubble runs for virtual months in a real minute; a hang ends here.
TEST_TIMEOUT ?= 30m
E2E_TIMEOUT ?= 30m
BENCH ?= .
BENCHTIME ?= 1s
FUZZTIME ?= 10m
FUZZ ?= .
SCALE_DURATION ?= 10m
SCALE_NODES ?= 1000
SCALE_PODS ?= 20000
SCALE_OUT ?= $(BIN)/scale
SCALE_ARGS ?=

# Tools that are built for their own use; not committed.
BIN := bin
# As $(abspath), which takes a path with spaces for several.
absolute = $(if $(filter /%,$(1)),$(1),$(CURDIR)/$(1))

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.8.0
CYCLONEDX := github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
# A copy of the database, http(s):// or file://, for machines that can't reach the one it knows.
GOVULNDB ?=

# With the tag of make alerts.
LICENCES = GOFLAGS="$$($(GO) env GOFLAGS) -tags=remove_all_sd" $(GO) run ./hack/licences $(MODULES)

.PHONY: help
help: ## Print the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The end-to-end tests and the long ones of the other modules wait for most of their time, and the short ones of the
# other modules run real processes in real time. The tests of the root module have virtual time: they run beside all
# of these, at a low priority, two goals at a time.
.PHONY: test
test: compiler ## The one test command: vet, unit, race and end-to-end tests
	@$(MAKE) --no-print-directory -j4 test-real-time deeper-modules test-virtual-time

# The collector of garbage takes half of the linkers' time and a sixth of the tests'. It runs less often here,
# within a limit for each program. A program with the race detector sleeps a second before it ends, by default.
test check race unit: export GOGC ?= 400
test check race unit: export GOMEMLIMIT ?= 1GiB
test race: export GORACE ?= atexit_sleep_ms=50

.PHONY: test-real-time
test-real-time:
	@$(MAKE) --no-print-directory e2e
	@$(MAKE) --no-print-directory race-modules

.PHONY: test-virtual-time
test-virtual-time:
	@nice -n 10 $(MAKE) --no-print-directory vet race-root deeper-root explore-short alerts vet-platforms

.PHONY: check
check: ## The inner loop: vet and short unit tests of the root module, without soaks, race detector and control plane
	$(GO) vet ./...
	$(GO) test -short -timeout $(TEST_TIMEOUT) ./...

.PHONY: vet
vet: ## Vet every module, and check that files are formatted
	@out=$$(git ls-files '*.go' | xargs gofmt -l); if [ -n "$$out" ]; then echo "not formatted:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	@for m in $(MODULES); do echo "vet $$m"; (cd $$m && $(GO) vet ./...); done

.PHONY: unit
unit: unit-root unit-modules ## Unit tests, and every benchmark once so that none rots

.PHONY: unit-root
unit-root: benchmarks-once
	$(GO) test -timeout $(TEST_TIMEOUT) ./...

# What race-root left out: it runs everything else once.
.PHONY: deeper-root
deeper-root: benchmarks-once
	@GO=$(GO) TEST_TIMEOUT=$(TEST_TIMEOUT) hack/deeper.sh .

.PHONY: benchmarks-once
benchmarks-once:
	@echo "benchmarks, once each"; out=$$($(GO) test -short -timeout $(TEST_TIMEOUT) -run '^$$' -bench . -benchtime 1x $(BENCHMARKED) 2>&1) || { echo "$$out"; exit 1; }

.PHONY: unit-modules
unit-modules:
	@for m in $(EXAMPLES); do echo "test $$m"; (cd $$m && $(GO) test -timeout $(TEST_TIMEOUT) ./...); done

.PHONY: shortened
shortened: ## Print what the tests do less with -short
	@git grep -npF -A1 'testing.Short()' -- '*_test.go'

.PHONY: deeper-modules
deeper-modules:
	@GO=$(GO) TEST_TIMEOUT=$(TEST_TIMEOUT) hack/deeper.sh $(EXAMPLES)

# Before the minutes that the tests take, not after them.
.PHONY: compiler
compiler:
	@[ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v "$$($(GO) env CC)" >/dev/null || { \
	  echo "the race detector needs cgo and a C compiler: install gcc (Debian: apt-get install gcc) and leave CGO_ENABLED unset"; exit 1; }

.PHONY: race
race: race-root race-modules ## Unit tests under the race detector, with short soaks: unit runs the long ones

# With two CPUs the race detector corrupts its own memory if two goroutines of a bubble
# receive from timers at once (golang/go#78156); with one it finds the same races.
RACE := -race -cpu 1

.PHONY: race-root
race-root: compiler
	$(GO) test $(RACE) -short -timeout $(TEST_TIMEOUT) ./...

.PHONY: race-modules $(EXAMPLES:%=race/%)
race-modules: $(EXAMPLES:%=race/%)

$(EXAMPLES:%=race/%): race/%: compiler
	cd $* && $(GO) test $(RACE) -short -timeout $(TEST_TIMEOUT) ./...

# Programs flush their files, which are copied at each crash: a file system in memory is several times faster.
EXPLORE := $(if $(wildcard /dev/shm/.),TMPDIR=/dev/shm )$(GO)

.PHONY: explore
explore: ## The library's controllers with every fault at every place, then an hour of pairs of faults (EXPLORE_PAIRS=1m for each test)
	cd test/explore && $(EXPLORE) test -timeout 5h -count=1 -v ./own -args -pairs=$(or $(EXPLORE_PAIRS),8m)
	cd test/explore && $(EXPLORE) test -timeout 1h -count=1 ./planted ./manager
	cd test/explore/public && $(EXPLORE) test -timeout 1h -count=1 -v .

.PHONY: explore-short
explore-short:
	cd test/explore && $(EXPLORE) test -short -timeout $(TEST_TIMEOUT) ./...
	cd test/explore/public && $(EXPLORE) test -short -timeout $(TEST_TIMEOUT) ./...

# Prometheus without the discovery of clouds: half of its packages.
.PHONY: alerts
alerts: ## The tests of docs/alerts.yaml, with promtool
	cd test/alerts && GOFLAGS="$$($(GO) env GOFLAGS) -tags=remove_all_sd" $(GO) tool promtool test rules rules.yaml

.PHONY: soak
soak: ## The long soaks, under the race detector too
	$(GO) test $(RACE) -timeout 2h -run 'Soak|Random|Crash|Fleet' -count=1 ./...
	$(GO) test -timeout 2h -run Soak -count=1 ./election -args -soak.seed=1000 -soak.time=400000s
	$(GO) test -timeout 2h -run Soak -count=1 ./podsync -args -soak.seeds=200

.PHONY: e2e
e2e: ## The packages and examples against a real control plane (built on first use: five to eight minutes; KUBEWRIGHT_E2E_VERSION=1.36 takes another version)
	cd test/controlplane && $(GO) test -timeout $(TEST_TIMEOUT) ./... && $(GO) run . build $(if $(KUBEWRIGHT_E2E_VERSION),--version=$(KUBEWRIGHT_E2E_VERSION))
	cd test/metricsserver && $(GO) build -o /dev/null sigs.k8s.io/metrics-server/cmd/metrics-server # compiled here, so that its test only links it
	KUBEWRIGHT_E2E=1 $(GO) test -timeout $(E2E_TIMEOUT) -p 1 -count=1 ./test/e2e/...
	cd test/vksuite && KUBEWRIGHT_E2E=1 $(GO) test -timeout $(E2E_TIMEOUT) -count=1 ./...
	cd examples/controlplane && KUBEWRIGHT_E2E=1 $(GO) test -timeout $(E2E_TIMEOUT) -count=1 ./...
	cd test/tutorial && KUBEWRIGHT_E2E=1 $(GO) test -timeout $(E2E_TIMEOUT) -count=1 .
	cd examples/dradriver && KUBEWRIGHT_E2E=1 $(GO) test -timeout $(E2E_TIMEOUT) -count=1 -run 'Device|Killed' .
	cd test/conformance && KUBEWRIGHT_E2E=1 KUBEWRIGHT_CONFORMANCE=built $(GO) test -timeout $(E2E_TIMEOUT) -count=1 -v -run TestSubset . # says why if it is left out

.PHONY: ports
ports: ## Three real providers of virtual-kubelet with vkadapter and with virtual-kubelet's node package: minutes to compile, three to run
	cd test/controlplane && $(GO) run . build
	cd test/ports && KUBEWRIGHT_E2E=1 $(GO) test -timeout $(TEST_TIMEOUT) -count=1 -v ./...

.PHONY: e2e-containers
e2e-containers: ## examples/crikubelet on a containerd of its own, with some of Kubernetes' specs: root, Debian's containerd (KUBEWRIGHT_CONTAINERD=2 builds another)
	cd test/controlplane && $(GO) run . build
	cd test/conformance && KUBEWRIGHT_E2E=1 $(GO) test -timeout $(E2E_TIMEOUT) -count=1 -v .

# The 144 specs that are labelled [Slow] take hours.
CONFORMANCE_SKIP ?= \[Slow\]

.PHONY: conformance
conformance: ## Kubernetes' conformance tests on examples/crikubelet: root, Debian's containerd, up to an hour (CONFORMANCE_FILES=node/pods.go CONFORMANCE_DIR for logs; CONFORMANCE_SKIP= for the slow specs too, which take hours)
	@hack/containerd.sh
	cd test/controlplane && $(GO) run . build
	cd test/conformance && KUBEWRIGHT_E2E=1 KUBEWRIGHT_CONFORMANCE=1 KUBEWRIGHT_CONFORMANCE_FILES='$(CONFORMANCE_FILES)' \
		KUBEWRIGHT_CONFORMANCE_SKIP='$(CONFORMANCE_SKIP)' KUBEWRIGHT_CONFORMANCE_DIR='$(CONFORMANCE_DIR)' \
		$(GO) test -timeout 5h -count=1 -v -run TestConformance .

.PHONY: chaos-containers
chaos-containers: ## SIGKILL for examples/crikubelet, its containerd and its shims while pods come and go: root
	@hack/containerd.sh
	cd test/controlplane && $(GO) run . build
	cd test/conformance && KUBEWRIGHT_E2E=1 KUBEWRIGHT_CHAOS=1 $(GO) test -timeout 30m -count=1 -v -run Kill .

.PHONY: bench-kubelet
bench-kubelet: ## examples/crikubelet beside the kubelet of Kubernetes, each on a containerd of its own: root; picture in SCALE_OUT
	@hack/containerd.sh
	cd test/controlplane && $(GO) run . build
	@mkdir -p "$(SCALE_OUT)" && cd bench && KUBEWRIGHT_E2E=1 KUBEWRIGHT_BENCH_KUBELET=1 KUBEWRIGHT_BENCH_OUT="$(call absolute,$(SCALE_OUT))" \
		$(GO) test -timeout 1h -count=1 -v -run TestCompare ./kubelet

.PHONY: e2e-all
e2e-all: ## e2e against every version that test/controlplane pins, one after the other; the summary comes last
	@cd test/controlplane && versions=$$($(GO) run . versions | awk '{print $$1}') && cd ../.. && failed= && \
	for v in $$versions; do echo "== $$v"; $(MAKE) --no-print-directory e2e KUBEWRIGHT_E2E_VERSION=$$v || failed+=" $$v"; done; \
	if [ -n "$$failed" ]; then echo "failed on$$failed"; exit 1; fi; echo "passed on" $$versions

.PHONY: demo
demo: ## Real control plane on loopback, an example node with node credentials (KEEP=1 keeps it running)
	@hack/demo.sh $(if $(KEEP),--keep)

.PHONY: hello
hello: ## Ten seconds and only Go, once it is compiled: a node on an API server in memory, a pod that runs, its log
	@command -v $(GO) >/dev/null || { echo "hello: no go command in PATH: install Go, or add its bin directory to PATH"; exit 1; }
	@echo "compiling examples/kubelet; the first time this takes one and a half to four minutes on two cores"
	@mkdir -p $(BIN) && cd examples/kubelet && $(GO) build -o "$(CURDIR)/$(BIN)/kubelet" .
	@$(GO) run ./hack/hello --kubelet $(BIN)/kubelet

.PHONY: chaos
chaos: ## examples/kubelet while everything around it breaks (CHAOS_DURATION=10m, CHAOS_SEED, CHAOS_DIR for logs; root for a full disk)
	cd test/controlplane && $(GO) run . build
	@mkdir -p $(BIN) && $(GO) build -o $(BIN)/chaos ./test/chaos && $(BIN)/chaos --duration=$(or $(CHAOS_DURATION),10m) --seed=$(or $(CHAOS_SEED),0) --dir=$(CHAOS_DIR)

.PHONY: bench
bench: ## Benchmarks of the packages, then side by side with their peers, on a real control plane too (BENCH, BENCHTIME)
	cd test/controlplane && $(GO) run . build
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem ./...
	cd bench && KUBEWRIGHT_E2E=1 $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 60m ./...
	cd bench && $(GO) test -v -count=1 -run 'TestCompare|TestMemory' -timeout 60m ./resourceslice -args -100k # tests: writes and time incomplete
	cd bench/claimstore && $(GO) test -run '^$$' -bench '$(BENCH)' -benchtime 200x .
	cd bench && KUBEWRIGHT_E2E=1 $(GO) test -run TestCompare -v -count=1 ./explore
	cd bench/election && $(GO) test -run TestCompare -v -count=1 . # elections in virtual time: a table, which can't be faster or slower

.PHONY: scale
scale: ## 1,000 nodes and 20,000 pods in one process for ten minutes, and kwok with the same; report and picture in SCALE_OUT (SCALE_DURATION=1m SCALE_NODES=100 SCALE_PODS=1000 SCALE_ARGS=--order=kwok,kubewright)
	@mkdir -p $(BIN) && cd bench && $(GO) build -o "$(CURDIR)/$(BIN)/scale-run" ./scale
	cd bench && exec "$(CURDIR)/$(BIN)/scale-run" --duration=$(SCALE_DURATION) --nodes=$(SCALE_NODES) --pods=$(SCALE_PODS) --out="$(call absolute,$(SCALE_OUT))" $(SCALE_ARGS)

.PHONY: lint
lint: vet vet-platforms verify structure vuln ## Vet, staticcheck and govulncheck (pinned) of every module, the trips of hack/walk, and the list of licences
	@mkdir -p $(BIN) && GOBIN="$(CURDIR)/$(BIN)" $(GO) install $(STATICCHECK)
	"$(CURDIR)/$(BIN)/staticcheck" ./...
	@for m in $(MODULES); do echo "staticcheck $$m"; (cd $$m && "$(CURDIR)/$(BIN)/staticcheck" ./...); done
	@$(LICENCES) | diff -u DEPENDENCIES.md - || { echo "run make licences"; exit 1; }

# On these the tests do not run, but the packages and their tests must compile. What is
# below test and hack needs a control plane or tools that are built for Linux. One of them
# is Windows with 32 bits: each platform costs a machine without a cache some minutes.
PLATFORMS := windows/386 darwin/arm64 linux/arm

.PHONY: vet-platforms
vet-platforms: ## Vet the root module for Windows, macOS and the 32 bits of 386 and arm
	@for p in $(PLATFORMS); do \
	  echo "vet $$p"; export CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/}; \
	  $(GO) vet $$($(GO) list ./... | grep -v '/test/\|/hack/'); \
	done

.PHONY: structure
structure: ## How the files of each package use one another (STRUCTURE=-v prints the names), and the length of the trips through them, which may not grow
	@$(GO) run ./hack/structure $(STRUCTURE) ./...
	@$(GO) run ./hack/structure $(STRUCTURE) -C nodeapi ./...
	@$(GO) run ./hack/structure $(STRUCTURE) -C vkadapter ./...
	@$(GO) run ./hack/structure $(STRUCTURE) -C apitest/crdschema ./...
	@$(GO) run ./hack/walk

.PHONY: vuln
vuln: ## Known vulnerabilities in what the modules call; says so where the database can't be reached
	@mkdir -p $(BIN) && GOBIN="$(CURDIR)/$(BIN)" $(GO) install $(GOVULNCHECK)
	@hack/vuln.sh "$(CURDIR)/$(BIN)/govulncheck" '$(GOVULNDB)' . $(MODULES)

.PHONY: verify
verify: ## The downloaded modules are those of go.sum
	$(GO) mod verify
	@for m in $(MODULES); do echo "verify $$m"; (cd $$m && $(GO) mod verify); done

.PHONY: sbom
sbom: ## Bills of materials (CycloneDX) of the modules that programs import, in bin/sbom
	@mkdir -p $(BIN)/sbom && GOBIN="$(CURDIR)/$(BIN)" $(GO) install $(CYCLONEDX)
	"$(CURDIR)/$(BIN)/cyclonedx-gomod" mod -licenses -json -output $(BIN)/sbom/kubewright.json .
	"$(CURDIR)/$(BIN)/cyclonedx-gomod" mod -licenses -json -output $(BIN)/sbom/nodeapi.json nodeapi

# The inputs that reached new code are kept below bin/fuzz, those that fail below testdata/fuzz of their package.
.PHONY: fuzz
fuzz: ## Every fuzz target for FUZZTIME (10m), of those that match FUZZ
	@GO=$(GO) hack/fuzz.sh $(FUZZTIME) '$(FUZZ)' "$(CURDIR)/$(BIN)/fuzz"

.PHONY: licences
licences: ## Rewrite DEPENDENCIES.md, the modules that this is built from and their licences
	@mkdir -p $(BIN)
	$(LICENCES) >$(BIN)/DEPENDENCIES.md && mv $(BIN)/DEPENDENCIES.md DEPENDENCIES.md

.PHONY: api
api: ## Rewrite the golden files of the exported API
	$(GO) test -run TestExportedAPI . -update
