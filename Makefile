# tpd: `make help` explains the targets.
#
# B (default: build) is where everything goes. SAN=address,undefined or SAN=thread builds with
# sanitizers. CC=clang works too.

B ?= build
CC = gcc
SAN ?=
OPT ?= -O2
PREFIX ?= /usr/local
# Where the system looks for cron's files; a prefix of somebody's own has an etc of its own.
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
PYTHON ?= /usr/bin/python3
# CUDA=1 builds tpd-cuda.so too, with the toolkit in CUDA_HOME, for the chips in CUDA_ARCH.
CUDA ?=
CUDA_HOME ?= /usr/local/cuda
CUDA_ARCH ?= 80 90 100

PKGS = libuv jansson libpcre2-8 libutf8proc sqlite3
# Asked once, and only when something is compiled: `make deps` runs before pkg-config is there.
PKG_CFLAGS = $(eval PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS)))$(PKG_CFLAGS)
PKG_LIBS = $(eval PKG_LIBS := $(shell pkg-config --libs $(PKGS)))$(PKG_LIBS)

# snprintf is used where cutting is meant; gcc's guess about it depends on the optimiser's mood.
WARN = -Wall -Wextra -Werror -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla \
       $(if $(findstring clang,$(CC)),,-Wno-format-truncation -Wno-psabi)
CFLAGS = -std=gnu11 $(OPT) -g -fno-omit-frame-pointer -ffp-contract=off $(WARN) -I. -Iclient/lib \
         -pthread -D_GNU_SOURCE -DPCRE2_CODE_UNIT_WIDTH=8 $(PKG_CFLAGS) $(SAN_FLAGS)
LDFLAGS = $(SAN_FLAGS)
LDLIBS = $(PKG_LIBS) -lhttp_parser -lm -pthread
SAN_FLAGS = $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all)

# A file for one instruction set is named for it; run-time dispatch chooses among them.
ISA_avx2 = -mavx2 -mfma -mf16c
ISA_avx512 = -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c
ISA_avxvnni = $(ISA_avx2) -mavxvnni
isa_flags = $(foreach isa,avx2 avxvnni avx512,$(if $(findstring _$(isa).c,$(1)),$(ISA_$(isa))))
# gcc takes minutes for -O3 under the address sanitizer, whose checks are the same at $(OPT).
kernel_flags = $(if $(SAN),,$(if $(findstring kernels/cpu/,$(1)),-O3))

CORE_DIRS = base formats text text/jinja kernels kernels/cpu kernels/plan ipc ranks model serve train
CORE_SRC = $(foreach d,$(CORE_DIRS),$(wildcard $(d)/*.c))
DAEMON_SRC = $(wildcard daemon/*.c)
CLIENT_LIB_SRC = $(wildcard client/lib/*.c)
TPCTL_SRC = $(wildcard client/tpctl/*.c)
TEST_SRC = $(wildcard tests/unit/test_*.c)
TEST_HELPER_SRC = $(filter-out $(TEST_SRC),$(wildcard tests/unit/*.c))
BENCH_SRC = $(wildcard bench/bench_*.c)
LOAD_SRC = $(wildcard bench/load/*.c)

obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
DAEMON_LIB_OBJ = $(filter-out $(B)/obj/daemon/main.o,$(call obj,$(DAEMON_SRC)))
TESTS = $(patsubst tests/unit/%.c,$(B)/tests/%,$(TEST_SRC))
BENCHES = $(patsubst bench/%.c,$(B)/bench/%,$(BENCH_SRC)) $(B)/bench/load

# The .cu sources as C++ for the devices that tests/cusim simulates.
CUSIM_DEVICE_SRC = $(filter-out tests/cusim/test_%,$(wildcard tests/cusim/*.cc)) $(wildcard kernels/cuda/*.cu)
CUSIM_SRC = $(CUSIM_DEVICE_SRC) $(wildcard tests/cusim/*.cu)
CUSIM_TESTS = $(patsubst tests/cusim/%.cc,$(B)/cusim/%,$(wildcard tests/cusim/test_*.cc)) \
              $(B)/cusim/golden_models $(B)/cusim/golden_training $(B)/cusim/golden_planning
CUSIM_FLAGS = -std=gnu++17 $(OPT) -g -Wall -Wextra -Werror -DTPD_CUSIM -D_GNU_SOURCE -ffp-contract=off -fPIC -fvisibility=hidden -pthread -I. -Itests/cusim \
              -Itests/cusim/include
cusim_obj = $(patsubst %,$(B)/obj/cusim/%.o,$(1))

# The same sources for real devices. Sums must not depend on where the compiler fuses: -fmad=false.
NVCC = $(CUDA_HOME)/bin/nvcc
NVCC_FLAGS = -std=c++17 -O3 -fmad=false -Werror all-warnings -I. -Itests/cusim \
             -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra,-Werror,-D_GNU_SOURCE \
             $(foreach arch,$(CUDA_ARCH),-gencode arch=compute_$(arch),code=sm_$(arch))
CUDA_OBJ = $(call gpu_obj,$(wildcard kernels/cuda/*.cu))
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublas -lcudart_static -lrt -ldl
gpu_obj = $(patsubst %,$(B)/obj/gpu/%.o,$(1))
# Of the tests on simulated devices, those that real ones can run, too.
GPU_TESTS = $(patsubst tests/cusim/%.cc,$(B)/gpu/%,$(filter-out %/test_cusim.cc,$(wildcard tests/cusim/test_*.cc))) \
            $(B)/gpu/golden_models $(B)/gpu/golden_training
GPU_BENCH_SRC = $(wildcard bench/gpu_bench*.cu)
# What either library needs of the rest, it brings along: it has one symbol for others, and asks for none.
PIC_LIB = $(B)/obj/pic/libbase.a

.PHONY: gpu-test gpu-test-build gpu-bench all tests help deps demo test test-unit test-e2e test-asan test-tsan test-cusim test-spin fuzz soak bench install clean
all: $(B)/tpd $(B)/tpctl $(B)/libtpdclient.a $(if $(CUDA),$(B)/tpd-cuda.so)

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(call kernel_flags,$<) $(call isa_flags,$<) -MMD -MP -c -o $@ $<

$(B)/libtpdcore.a: $(call obj,$(CORE_SRC))
	rm -f $@ && ar rcs $@ $^
# One object whose only global symbols are tpd_…: strangers link it beside names of their own.
$(B)/libtpdclient.a: $(call obj,$(CLIENT_LIB_SRC) base/error.c)
	ld -r -o $(B)/obj/libtpdclient.o $^
	objcopy -w --keep-global-symbol='tpd_*' $(B)/obj/libtpdclient.o
	rm -f $@ && ar rcs $@ $(B)/obj/libtpdclient.o
$(B)/libtpddaemon.a: $(DAEMON_LIB_OBJ)
	rm -f $@ && ar rcs $@ $^
$(B)/libtesthelp.a: $(call obj,$(TEST_HELPER_SRC))
	rm -f $@ && ar rcs $@ $^
$(B)/tpd: $(B)/obj/daemon/main.o $(B)/libtpddaemon.a $(B)/libtpdcore.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(B)/tpctl: $(call obj,$(TPCTL_SRC)) $(B)/libtpdclient.a
	$(CC) $(LDFLAGS) -o $@ $^ -ljansson -ledit -lm -pthread
$(B)/obj/cusim/%.o: %
	@mkdir -p $(@D)
	$(CXX) $(CUSIM_FLAGS) -MMD -MP -x c++ -c -o $@ $<
# The goldens of the C tests, on ranks that have simulated devices.
$(B)/cusim/golden_models: $(B)/obj/tests/unit/test_model_golden.o
$(B)/cusim/golden_training: $(B)/obj/tests/unit/test_train_golden.o
$(B)/cusim/golden_planning: $(B)/obj/tests/unit/test_planning.o
$(B)/cusim/golden_%: $(B)/libtesthelp.a $(call cusim_obj,$(CUSIM_SRC)) $(B)/libtpdcore.a
	@mkdir -p $(@D)
	$(CXX) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(B)/libtpdcore.a -lcmocka $(LDLIBS)
$(B)/cusim/%: $(B)/obj/cusim/tests/cusim/%.cc.o $(call cusim_obj,$(CUSIM_SRC)) $(B)/libtpdcore.a
	@mkdir -p $(@D)
	$(CXX) -o $@ $^ -lcmocka $(LDLIBS)
$(B)/obj/pic/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<
$(PIC_LIB): $(patsubst %.c,$(B)/obj/pic/%.o,$(wildcard base/*.c) kernels/kernels.c)
	rm -f $@ && ar rcs $@ $^
$(B)/cusim/tpd-cuda.so: $(call cusim_obj,$(CUSIM_DEVICE_SRC)) $(PIC_LIB)
	@mkdir -p $(@D)
	$(CXX) -shared -Wl,-z,defs -o $@ $^ -pthread
$(B)/cusim/gpu_bench: $(call cusim_obj,$(GPU_BENCH_SRC) $(CUSIM_DEVICE_SRC)) $(B)/libtpdcore.a
	@mkdir -p $(@D)
	$(CXX) -o $@ $^ $(LDLIBS)
$(B)/obj/gpu/%.o: %
	@mkdir -p $(@D)
	@test -x $(NVCC) || { echo 'there is no $(NVCC): CUDA_HOME=dir names the CUDA toolkit' >&2; exit 1; }
	$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -x cu -c -o $@ $<
$(B)/tpd-cuda.so: $(CUDA_OBJ) $(PIC_LIB)
	$(CXX) -shared -Wl,-z,defs,--exclude-libs,ALL -o $@ $^ $(CUDA_LIBS) -pthread
$(B)/gpu/golden_models: $(B)/obj/tests/unit/test_model_golden.o
$(B)/gpu/golden_training: $(B)/obj/tests/unit/test_train_golden.o
$(B)/gpu/golden_%: $(B)/libtesthelp.a $(CUDA_OBJ) $(B)/libtpdcore.a
	@mkdir -p $(@D)
	$(CXX) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(B)/libtpdcore.a -lcmocka $(LDLIBS) $(CUDA_LIBS)
$(B)/gpu/gpu_bench: $(call gpu_obj,$(GPU_BENCH_SRC)) $(CUDA_OBJ) $(B)/libtpdcore.a
	@mkdir -p $(@D)
	$(CXX) -o $@ $^ $(LDLIBS) $(CUDA_LIBS)
$(B)/gpu/%: $(B)/obj/gpu/tests/cusim/%.cc.o $(CUDA_OBJ) $(B)/libtpdcore.a
	@mkdir -p $(@D)
	$(CXX) -o $@ $^ -lcmocka $(LDLIBS) $(CUDA_LIBS)
$(B)/tests/%: $(B)/obj/tests/unit/%.o $(B)/libtesthelp.a $(B)/libtpddaemon.a $(B)/libtpdcore.a \
              $(B)/libtpdclient.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)
$(B)/bench/load: $(call obj,$(LOAD_SRC))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ -luv -ljansson -lhttp_parser -lm
$(B)/bench/%: $(B)/obj/bench/%.o $(B)/libtpdcore.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

.PRECIOUS: $(B)/obj/%.o $(B)/obj/cusim/%.o
-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)

tests: $(TESTS)

# --- what people call ----------------------------------------------------------------------------

help:
	@echo 'make              build $(B)/tpd, $(B)/tpctl and the client library'
	@echo 'make CUDA=1       $(B)/tpd-cuda.so too, with which tpd runs on GPUs (needs the CUDA toolkit)'
	@echo 'make deps         install the Debian packages that building and testing need (as root)'
	@echo 'make demo         build, start tpd on two ranks, ask it something, teach it, roll back (no download)'
	@echo '                  MODEL=smollm2: the same with a real chat model, fetched once (93 MB)'
	@echo 'make test         everything under test: unit tests, the debug-address pass, end to end'
	@echo 'make test-unit    the C tests alone       make test-e2e   the tests through the socket alone'
	@echo 'make test-asan    the C tests with the address and undefined-behaviour sanitizers'
	@echo 'make test-tsan    the C tests that start threads, with the thread sanitizer'
	@echo 'make test-cusim   the CUDA sources on simulated devices, and tpd on them'
	@echo 'make gpu-test     the same tests on the GPUs of this machine (gpu-test-build: builds them, needs no GPU)'
	@echo 'make gpu-bench    what the CUDA side makes of a GPU: GB/s, TFLOP/s, all-reduce beside NCCL (GPUS=0,1)'
	@echo 'make test-spin    every interleaving of the collectives'"'"' flag protocols (needs spin, else skips)'
	@echo 'make fuzz         mutated model files, tokenizers and requests under sanitizers'
	@echo 'make soak         a thousand clients, good and bad, for ten minutes (SOAK_SECONDS=600)'
	@echo 'make bench        speed, beside llama.cpp where LLAMA_BENCH, LLAMA_BATCHED_BENCH and LLAMA_SERVER'
	@echo '                  name its programs; a quarter of an hour, BENCH=full over an hour (docs/performance.md)'
	@echo 'make install      into PREFIX ($(PREFIX)), with man pages, units, configuration and the small model'
	@echo 'make clean        remove $(B)'
	@echo
	@echo 'Variables: B=dir  CC=gcc|clang  SAN=address,undefined|thread  PREFIX=dir  DESTDIR=dir'
	@echo '           CUDA_HOME=$(CUDA_HOME)  CUDA_ARCH="$(CUDA_ARCH)"'

DEB = gcc g++ make pkg-config libuv1-dev libjansson-dev libpcre2-dev libutf8proc-dev \
      libsqlite3-dev libhttp-parser-dev libedit-dev libcmocka-dev python3 python3-pip python3-pytest python3-numpy spin
deps:
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $(DEB)

demo:
	@$(MAKE) --no-print-directory -j2 all
	@B=$(B) PYTHON=$(PYTHON) etc/demo/demo.sh $(MODEL)

test:
	@$(MAKE) --no-print-directory -j2 all tests $(B)/bench/load
	@B=$(B) PYTHON=$(PYTHON) tests/openai_venv.sh
	@B=$(B) PYTHON=$(PYTHON) tests/run.sh layers unit alias e2e
test-unit:
	@$(MAKE) --no-print-directory -j2 tests
	@B=$(B) PYTHON=$(PYTHON) tests/run.sh layers unit
test-e2e:
	@$(MAKE) --no-print-directory -j2 all $(B)/bench/load
	@B=$(B) PYTHON=$(PYTHON) tests/run.sh e2e

test-asan:
	@$(MAKE) --no-print-directory -j2 B=$(B)-asan SAN=address,undefined OPT=-O1 all tests
	@B=$(B)-asan PYTHON=$(PYTHON) tests/run.sh unit
test-tsan:
	@$(MAKE) --no-print-directory -j2 B=$(B)-tsan SAN=thread OPT=-O1 all tests
	@B=$(B)-tsan PYTHON=$(PYTHON) tests/run.sh threads
test-cusim:
	@$(MAKE) --no-print-directory -j2 $(CUSIM_TESTS) $(B)/cusim/tpd-cuda.so $(B)/cusim/gpu_bench all
	@B=$(B) PYTHON=$(PYTHON) tests/run.sh cusim
# The tests of the CUDA side on the GPUs of this machine; gpu-test-build needs none.
gpu-test-build:
	@$(MAKE) --no-print-directory -j2 $(GPU_TESTS) $(B)/gpu/gpu_bench $(B)/tpd-cuda.so all
gpu-test: gpu-test-build
	@B=$(B) PYTHON=$(PYTHON) tests/run.sh gpu
gpu-bench:
	@$(MAKE) --no-print-directory -j2 $(B)/gpu/gpu_bench
	@CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32 $(B)/gpu/gpu_bench $(GPUS)
test-spin:
	@CC='$(CC)' tests/spin/run.sh
fuzz:
	@$(MAKE) --no-print-directory -j2 B=$(B)-asan SAN=address,undefined OPT=-O1 all tests
	@B=$(B)-asan PYTHON=$(PYTHON) TPD_FUZZ_SECONDS=$${TPD_FUZZ_SECONDS:-60} tests/run.sh fuzz

SOAK_SECONDS ?= 600
soak:
	@$(MAKE) --no-print-directory -j2 all
	@TPD_BUILD=$(B) TPD_SOAK_SECONDS=$(SOAK_SECONDS) $(PYTHON) -m pytest -q -s -p no:cacheprovider tests/e2e/test_soak.py

bench:
	@$(MAKE) --no-print-directory -j2 all $(BENCHES)
	@B=$(B) PYTHON=$(PYTHON) bench/run.sh

install: all
	install -D -m 755 $(B)/tpd $(DESTDIR)$(PREFIX)/bin/tpd
	install -D -m 755 $(B)/tpctl $(DESTDIR)$(PREFIX)/bin/tpctl
	install -D -m 644 $(B)/libtpdclient.a $(DESTDIR)$(PREFIX)/lib/libtpdclient.a
	test ! -e $(B)/tpd-cuda.so || \
	    install -D -m 755 $(B)/tpd-cuda.so $(DESTDIR)$(PREFIX)/lib/tpd/tpd-cuda.so
	install -D -m 644 client/lib/tpd/client.h $(DESTDIR)$(PREFIX)/include/tpd/client.h
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed 's#@PREFIX@#$(PREFIX)#g' client/lib/tpdclient.pc.in >$(DESTDIR)$(PREFIX)/lib/pkgconfig/tpdclient.pc
	install -D -m 644 client/python/tpd.py $(DESTDIR)$(PREFIX)/share/tpd/python/tpd.py
	install -D -m 644 etc/tpd.conf $(DESTDIR)$(PREFIX)/share/tpd/tpd.conf
	for file in config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json README.md; do \
	    install -D -m 644 etc/models/alder/$$file $(DESTDIR)$(PREFIX)/share/tpd/models/alder/$$file || exit; done
	install -D -m 644 README.md $(DESTDIR)$(PREFIX)/share/doc/tpd/README.md
	install -d $(DESTDIR)$(PREFIX)/share/doc/tpd/docs/schema
	install -m 644 docs/*.md $(DESTDIR)$(PREFIX)/share/doc/tpd/docs
	install -m 644 docs/schema/*.json $(DESTDIR)$(PREFIX)/share/doc/tpd/docs/schema
	for name in tpd tpctl; do \
	    install -D -m 644 docs/man/$$name.1 $(DESTDIR)$(PREFIX)/share/man/man1/$$name.1 || exit; \
	    install -D -m 644 etc/completions/$$name.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$name || exit; done
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in tpd.service tpd-nightly.service tpd-nightly.timer; do \
	    sed 's#/usr/local/#$(PREFIX)/#g' etc/systemd/$$unit >$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit; done
	install -d $(DESTDIR)$(SYSCONFDIR)/cron.d
	cron=$(DESTDIR)$(SYSCONFDIR)/cron.d/tpd-nightly; test -e $$cron || \
	    { sed 's#/usr/local/#$(PREFIX)/#g' etc/cron.d/tpd-nightly >$$cron && chmod 644 $$cron; }

clean:
	rm -rf $(B) $(B)-asan $(B)-tsan
