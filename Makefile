# Every target sets up what it needs; `make` alone lists them.

PYTHON ?= python3
# Each worker of the tests starts a broker and a Spark of its own.
WORKERS ?= 2
CHROMIUM ?= chromium
bin := .venv/bin

unexport PYTHONDONTWRITEBYTECODE
# Certificates that the machine trusts are good enough for uv, too.
export UV_SYSTEM_CERTS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Where only an account leads; docs/world.md has what each needs.
worlds := world-aws world-gcs world-azure world-msk world-confluent world-k8s world-databricks world-here

.DEFAULT_GOAL := help
.PHONY: help setup setup-s3 demo ui test test-long test-ui screenshots wheel-test quickstart ranges newest-dagster unit docs lint format lock clean
.PHONY: audit sbom dist release-dry spark-s3 bench image size kills cluster-kills crash-matrix power-cuts modes-matrix double-starts ends mutants model histories pairs soak lives proofs
.PHONY: specification catalogs world-rest archive brokers soak-brokers brokers-versions tiered-storage $(worlds)

help: ## daily: List the targets
	@for group in daily proof release; do \
		echo "$$group:"; \
		awk -F ":.*## $$group: " "/^[a-z0-9-]+:.*## $$group: / { printf \"  make %-13s %s\n\", \$$1, \$$2 }" \
			$(MAKEFILE_LIST); \
	done

setup: .venv/.installed .jars/.fetched ## daily: Install the Python packages and fetch the jars, as locked
	@$(bin)/python -m oncelake.ingestion.operations.archive_classes
	@[ "$(MAKECMDGOALS)" != setup ] || echo "setup: all there. Next: make demo"

setup-s3: setup ## daily: Fetch also what Spark needs to write tables of a lake on S3
	@$(bin)/python -m oncelake.ingestion.local.jars --s3

demo: setup $(if $(filter s3,$(LAKE)),setup-s3) ## daily: Load flights through the embedded Kafka, and prove it (LAKE=s3)
	@$(in_a_store) $(bin)/python -m oncelake.ingestion.cli.demo.demo

# Moto's S3, started for the command and stopped after it.
in_a_store = $(if $(filter s3,$(LAKE)),$(bin)/python -m tests.support.in_a_store)

# A server of PostgreSQL, for a sink that needs one.
in_postgres = $(if $(filter postgres,$(SINK)),$(bin)/python -m tests.support.in_postgres) env

ui: export DAGSTER_HOME := $(CURDIR)
ui: setup ## daily: Start Dagster's web UI, and the embedded Kafka unless ONCELAKE_KAFKA is set
	@$(bin)/oncelake kafka up --if-used
	@$(bin)/dagster dev -h 127.0.0.1

test: lint .jars/.tests-fetched ## daily: Check everything: lint, then every test
	@$(bin)/pytest tests/ui
	@$(bin)/pytest $(in_parallel) --ignore tests/ui

test-long: lint .jars/.tests-fetched ## proof: Do as make test, with every twin of a test, and every write mode both ways
	@$(bin)/pytest tests/ui
	@LONG=1 $(bin)/pytest $(in_parallel) --ignore tests/ui

test-ui: setup .jars/.tests-fetched ## daily: Click through Dagster's UI in Chromium, the whole story
	@command -v $(CHROMIUM) >/dev/null || { echo "oncelake: $(CHROMIUM) was not found;" \
		"install it (Debian, Ubuntu: apt install chromium), or name it: make test-ui CHROMIUM=..." >&2; exit 2; }
	@UI=1 CHROMIUM=$(CHROMIUM) $(bin)/pytest tests/ui

readers: setup .venv-readers/.installed ## proof: Let DuckDB, Polars, pyiceberg, delta-rs and Spark read our tables
	@ONCELAKE_READERS=$(CURDIR)/.venv-readers/bin/python $(bin)/pytest tests/readers

.PHONY: film
film: setup ## release: Record what README's first screen shows: a run is killed, and its table proven
	@$(bin)/python -m tests.ui.film docs/images/killed.svg

screenshots: export SCREENSHOTS := 1
screenshots: test-ui ## release: Do as make test-ui, and take the pictures of the docs on the way

wheel-test: setup ## release: Build a wheel, install it elsewhere, and use it there (FRESH=1: fetch the jars, too; DIST=dist: the wheel in there)
	@FRESH=$(FRESH) DIST=$(DIST) WITH=$(WITH) $(bin)/python -m tests.wheel

quickstart: setup ## release: Type the first commands of docs/embedding.md in a new environment, timed, and the tutorial (WITH=python3.13 FRESH=1)
	@FRESH=$(FRESH) DIST=$(DIST) WITH=$(WITH) $(bin)/python -m tests.wheel quickstart

ranges: setup ## release: Do as make wheel-test, with the oldest packages that the wheel allows, and with the newest
	@$(bin)/python -m tests.wheel ends

newest-dagster: setup ## release: Do as make wheel-test, with the newest Dagster there is; where it fails, only warn
	@DIST=$(DIST) $(bin)/python -m tests.wheel newest

# The browser's tests have a process of their own: what drives it leaves an event loop behind, which
# Dagster's own would stumble over.
# Not worksteal, which knows no groups: a module, and all that asks for the registry or a further broker,
# stays on one worker (tests/support/schedule.py).
in_parallel := --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder

image: setup ## release: Build the image, and let two hosts of it share a lake (ENGINE=podman BASE=debootstrap WITH=)
	@$(bin)/python -m tests.image --engine $(or $(ENGINE),podman) \
		$(if $(filter debootstrap,$(BASE)),--debootstrap) $(foreach file,$(WITH),--with $(file))

unit: setup ## daily: Run the tests that need neither Spark nor Kafka
	@$(bin)/pytest -m "not spark and not kafka"

kills: setup ## proof: Kill a run at ten random moments, and prove that nothing is lost or doubled
	@RANDOM_KILLS=10 $(bin)/pytest tests/crash -k random

cluster-kills: setup ## proof: Kill executors, workers and runs of a Spark cluster (KILLS=20 SEED=1)
	@$(bin)/python -m tests.cluster --kills $(or $(KILLS),20) --seed $(or $(SEED),1)

crash-matrix: setup $(if $(filter s3,$(LAKE)),setup-s3) ## proof: Kill runs everywhere, every way (MINUTES=60 SEED=1 LAKE=s3 SINK=; goes on where it was)
	@$(in_a_store) $(in_postgres) SINK=$(SINK) $(bin)/python -m tests.crash --minutes $(or $(MINUTES),60) --seed $(or $(SEED),1) \
		$(foreach way,$(WAYS),--way $(way)) $(if $(TRIALS),--trials $(TRIALS))

power-cuts: setup ## proof: Cut the power of a run's disk, everywhere (CUTS=1000 MINUTES=60 SEED=1; needs root)
	@$(bin)/python -m tests.power --cuts $(or $(CUTS),1000) --seed $(or $(SEED),1)
	@$(bin)/python -m tests.crash --power --results .proofs/power-cuts.jsonl \
		--minutes $(or $(MINUTES),60) --seed $(or $(SEED),1) $(if $(TRIALS),--trials $(TRIALS))

modes-matrix: setup ## proof: Kill every write mode around its commit, in batches of 1, 7, 1,000 and all
	@MODES_MATRIX=1 $(bin)/pytest $(in_parallel) tests/modes

double-starts: setup ## proof: Start two runs at the same moment, fifty times
	@DOUBLE_STARTS=50 $(bin)/pytest tests/crash/test_double_start.py

ends: setup ## proof: End processes that have read or committed, and see each end with 0 (ENDS=200 RUNS=200)
	@$(bin)/python -m tests.ends --reads $(or $(ENDS),200) --ledger $(or $(ENDS),200) \
		--verify $(or $(ENDS),200) --runs $(or $(RUNS),200)

mutants: setup ## proof: Plant one bug at a time, in the code and in the protocol, and see it caught
	@LONG=1 $(bin)/pytest tests/model -k wrong_protocol
	@$(bin)/python -m tests.mutants

model: setup ## proof: Play schedules of faults through a model of the protocol (SCHEDULES=1000000 SEED=1)
	@$(bin)/python -m tests.model SCHEDULES=$(or $(SCHEDULES),1000000) SEED=$(or $(SEED),1)

specification: setup $(if $(TLC),,.venv-specification/.installed) ## proof: Let TLC check the protocol's TLA+ specification, and refute wrong ones (TLC=tla2tools.jar)
	@$(bin)/python -m tests.specification $(if $(TLC),--tlc $(TLC))

histories: setup ## proof: Play random histories of a database, the oracle (HISTORIES=20000 SEED=1 ENGINE=spark SINKS= WITHOUT= MINUTES=; goes on where it was)
	@$(bin)/python -m tests.database --histories $(or $(HISTORIES),20000) --seed $(or $(SEED),1) \
		$(if $(ENGINE),--engine $(ENGINE)) $(if $(SINKS),--sinks $(SINKS)) \
		$(if $(WITHOUT),--without "$(WITHOUT)") $(if $(MINUTES),--minutes $(MINUTES))

soak: setup ## proof: Ingest while things go wrong (MINUTES=10 RUNNER=sensor|follow)
	@$(bin)/python -m tests.soak --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1) \
		--records $(or $(RECORDS),200000) --runner $(or $(RUNNER),sensor)

proofs: setup ## proof: Run the long proofs that tests/proofs.py lists, in pieces, and go on where it was (MINUTES=600)
	@$(bin)/python -m tests.proofs --minutes $(or $(MINUTES),600)

lives: setup ## proof: Do to streams what people do, in any order (STEPS=60 SEED=1 FOLDER=; in a folder, goes on where it was)
	@$(bin)/python -m tests.lives --steps $(or $(STEPS),60) --seed $(or $(SEED),1) \
		$(if $(FOLDER),--folder $(FOLDER))

pairs: setup ## proof: Declare each field beside every other, on random topics (SEEDS=1 SEED=1 MINUTES=60 ALONE=)
	@$(bin)/python -m tests.pairs --seeds $(or $(SEEDS),1) --first $(or $(SEED),1) \
		--minutes $(or $(MINUTES),60) $(if $(ALONE),--alone)

catalogs: setup .jars/.tests-fetched ## proof: Try Iceberg's catalogs on servers of their own (CATALOGS="seaweedfs servlet postgres glue hive" LONG= ONCELAKE_TEST_MINUTES=)
	@$(bin)/python -m oncelake.ingestion.local.jars --catalogs
	@LONG=$(LONG) CATALOGS="$(or $(CATALOGS),seaweedfs servlet postgres glue hive)" $(bin)/pytest tests/catalogs

world-rest: setup ## proof: Try an Iceberg REST catalog of your own (URI=https://… CATALOG=default; docs/catalogs.md)
	@$(bin)/python -m tests.catalogs --catalog $(or $(CATALOG),default) $(if $(URI),--uri $(URI))

brokers: setup ## proof: Ingest from three brokers that go down, and are cut off (MINUTES=20 SEED=1 SINKS=delta,iceberg,postgres,kafka; needs root)
	@$(bin)/python -m tests.brokers --minutes $(or $(MINUTES),20) --seed $(or $(SEED),1) \
		$(if $(SINKS),--sinks $(SINKS))

soak-brokers: ## proof: Do as make brokers, for an hour (MINUTES=60)
	@$(MAKE) --no-print-directory brokers MINUTES=$(or $(MINUTES),60)

brokers-versions: setup ## proof: Tell one story to brokers of several versions (VERSIONS="3.9.2 4.4.0")
	@$(bin)/python -m tests.brokers.versions $(VERSIONS)

tiered-storage: setup ## proof: Tell a story to a broker whose logs lie in tiered storage (VERSION=4.1.2)
	@$(bin)/python -m tests.brokers.tiered $(VERSION)

# make world-aws: S3 and Glue, and so on: tests/world.py has the list, docs/world.md what each needs.
$(worlds): world-%: setup $(if $(findstring s3://,$(ONCELAKE_LAKE)),setup-s3)
	@$(bin)/python -m tests.world $*

archive: setup ## release: Write a lake of this version, which every later version must read, to tests/upgrade/archives
	@$(bin)/python -m tests.upgrade.make

docs: setup ## daily: Build the documentation as a site in site/, strictly
	@NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict

.PHONY: site
site: setup ## release: Build the documentation of every tagged version, and of this one, in site/
	@$(bin)/python -m bench.site site

lint: setup ## daily: Check format, style, types and the import law
	@$(bin)/ruff format --check
	@$(bin)/ruff check
	@$(bin)/mypy
	@$(bin)/lint-imports

format: setup ## daily: Format the code
	@$(bin)/ruff format
	@$(bin)/ruff check --fix

bench: setup ## release: Measure it all beside naive Spark, delta-rs by hand and dlt (LARGE=1: 16 M rows)
	@$(MAKE) --no-print-directory .venv-bench/.installed || \
		echo "bench: dlt cannot be installed, and is skipped"
	@$(bin)/python -m bench $(if $(LARGE),--large) --write docs/speed.md --json bench/figures.json
	@$(bin)/python -m bench.decode
	@$(bin)/python -m bench.many

size: .venv/.installed ## release: Count the lines of code of each package
	@$(bin)/python -m bench.size

audit: .venv-audit/.installed ## release: Ask OSV for known vulnerabilities of the locked Python packages
	@mkdir -p build
	@rm -f build/audit.txt
	@.venv-audit/bin/pip-audit $(foreach id,$(ACCEPTED),--ignore-vuln $(id)) --strict --disable-pip \
		--require-hashes --vulnerability-service osv --progress-spinner off \
		$(foreach locked,$(audited),--requirement $(locked)) --output build/audit.txt 2> build/audit.log || \
		{ [ -s build/audit.txt ] || { tail -n 1 build/audit.log; echo "audit: OSV did not answer, so" \
			"nothing is known of the packages. Next: make audit, where OSV can be reached"; exit 2; }; \
		cat build/audit.txt; echo "audit: see above. Next: raise the package's bound in" \
			"pyproject.toml, and make lock"; exit 1; } >&2
	@echo "audit: nothing is known against the packages of $(audited)"

# Known vulnerabilities that do not concern this project: SECURITY.md has the reason of each.
ACCEPTED :=
audited := requirements.lock requirements-uv.lock

sbom: setup-s3 ## release: Write what the product is made of to oncelake.cdx.json (CycloneDX), which the wheel has
	@$(bin)/python -m bench.sbom oncelake.cdx.json

dist: .venv/.installed ## release: Build what is published into dist/, twice to the same bytes (TAG=v0.1.0 must be the version)
	@$(bin)/python -m bench.dist dist

release-dry: setup ## release: Go through the release's workflow, step by step, on this machine
	@$(bin)/python -m tests.release

lock: .venv/.tools ## release: Bring the lock files in line with pyproject.toml and ivy.xml
	@echo uv | $(bin)/uv pip compile $(compile) -o requirements-uv.lock -
	@$(bin)/uv pip compile $(compile) --all-extras -o requirements.lock pyproject.toml
	@$(bin)/uv pip compile $(compile) -o bench/requirements.lock bench/requirements.in
	@$(bin)/uv pip compile $(compile) -o tests/readers/requirements.lock tests/readers/requirements.in
	@$(bin)/uv pip compile $(compile) -o tests/specification/requirements.lock \
		tests/specification/requirements.in
	@$(bin)/uv pip compile $(compile) -o .ci/audit.lock .ci/audit.in
	@$(MAKE) .venv/.installed
	@$(bin)/python -m oncelake.ingestion.local.jars --lock
	@$(MAKE) sbom

spark-s3: setup-s3 ## release: Compile what is ours of Spark on S3 into ingestion/local/spark_s3.jar, by JDK 17
	@$${JAVA_HOME:+$$JAVA_HOME/bin/}javac --release 17 -d build/spark-s3 \
		-cp "$$($(bin)/python -c 'import pyspark; print(*pyspark.__path__)')/jars/*:.jars/spark/*:.jars/s3/*" \
		$(java)
	@$${JAVA_HOME:+$$JAVA_HOME/bin/}jar --create --file ingestion/local/spark_s3.jar \
		--no-manifest --no-compress --date 2026-01-01T00:00:00Z \
		$(foreach class,$(java),-C build/spark-s3 oncelake/$(basename $(notdir $(class))).class) \
		$(foreach source,$(java),-C ingestion/local $(notdir $(source)))

java := $(addprefix ingestion/local/,ConditionalLogStore.java FolderlessS3.java)

clean: ## daily: Remove the set-up and the caches; the lake and the embedded Kafka's records stay
	rm -rf .venv .venv-bench .venv-readers .venv-specification .venv-audit .jars *.egg-info build dist site
	rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

compile := --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-emit-index-url --custom-compile-command "make lock"

.venv/.tools: requirements-uv.lock
	@PYTHON="$(PYTHON)" sh .ci/prerequisites
	@echo "python: making .venv"
	@[ -x $(bin)/python ] || "$(PYTHON)" -m venv .venv
	@echo "python: installing uv, which installs the rest"
	@$(bin)/python -m pip install --quiet --require-hashes -r requirements-uv.lock
	@touch $@

.venv/.installed: .venv/.tools requirements.lock pyproject.toml
	@echo "python: installing the packages of requirements.lock, some minutes"
	@$(bin)/uv pip install --quiet --python $(bin)/python --require-hashes -r requirements.lock
	@echo "python: installing oncelake itself"
	@$(bin)/uv pip install --quiet --python $(bin)/python --no-deps --no-build-isolation -e .
	@touch $@

# dlt is no part of the product: it has an environment of its own, and only here.
.venv-bench/.installed: .venv/.tools bench/requirements.lock
	@$(bin)/uv venv --quiet --clear --python $(bin)/python .venv-bench
	@$(bin)/uv pip install --quiet --python .venv-bench/bin/python --require-hashes \
		-r bench/requirements.lock
	@touch $@

.venv-readers/.installed: .venv/.tools tests/readers/requirements.lock
	@$(bin)/uv venv --quiet --clear --python $(bin)/python .venv-readers
	@$(bin)/uv pip install --quiet --python .venv-readers/bin/python --require-hashes \
		-r tests/readers/requirements.lock
	@touch $@

.venv-specification/.installed: .venv/.tools tests/specification/requirements.lock
	@$(bin)/uv venv --quiet --clear --python $(bin)/python .venv-specification
	@$(bin)/uv pip install --quiet --python .venv-specification/bin/python --require-hashes \
		-r tests/specification/requirements.lock
	@touch $@

.venv-audit/.installed: .venv/.tools .ci/audit.lock
	@$(bin)/uv venv --quiet --clear --python $(bin)/python .venv-audit
	@$(bin)/uv pip install --quiet --python .venv-audit/bin/python --require-hashes -r .ci/audit.lock
	@touch $@

.jars/.tests-fetched: .jars/.fetched
	@$(bin)/python -m oncelake.ingestion.local.jars --tests
	@$(bin)/python -m oncelake.ingestion.local.jars --s3
	@touch $@

.jars/.fetched: .venv/.installed ingestion/local/jars.lock
	@$(bin)/python -m oncelake.ingestion.local.jars
	@touch $@
