# tpd: see `make help`.
#
# B (default build) is where everything goes; SAN=address,undefined or SAN=thread builds with
# sanitizers (into build-asan, build-tsan through the targets below); CC=clang works too.

B ?= build
CC = gcc
SAN ?=
PREFIX ?= /usr/local
OPT ?= -O2
PKGS = libuv jansson libpcre2-8 libutf8proc

WARN = -Wall -Wextra -Werror -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
CFLAGS += -std=gnu11 $(OPT) -g -fno-omit-frame-pointer -ffp-contract=off $(WARN) -I. -pthread \
          -D_GNU_SOURCE -DPCRE2_CODE_UNIT_WIDTH=8 $(shell pkg-config --cflags $(PKGS))
LDLIBS += $(shell pkg-config --libs $(PKGS)) -ldnnl -lm -pthread
ifneq ($(SAN),)
CFLAGS += -fsanitize=$(SAN) -fno-sanitize-recover=all
LDFLAGS += -fsanitize=$(SAN)
endif

# Files for one instruction set are named for it; run-time dispatch chooses among them.
ISA_avx2 = -mavx2 -mfma -mf16c
ISA_avx512 = -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c
isa_flags = $(foreach isa,avx2 avx512,$(if $(findstring _$(isa).c,$(1)),$(ISA_$(isa))))
# Kernels are worth -O3 also where the rest is built for debugging.
kernel_flags = $(if $(findstring kernels/cpu/,$(1)),-O3)

CORE_DIRS = base formats text kernels kernels/cpu kernels/plan ipc ranks model serve
CORE_SRC = $(foreach d,$(CORE_DIRS),$(wildcard $(d)/*.c))
DAEMON_SRC = $(wildcard daemon/*.c)
CLIENT_LIB_SRC = $(wildcard client/lib/*.c)
TPCTL_SRC = $(wildcard client/tpctl/*.c)
TEST_SRC = $(wildcard tests/unit/test_*.c)
BENCH_SRC = $(wildcard bench/*.c)

obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
DAEMON_LIB_OBJ = $(filter-out $(B)/obj/daemon/main.o,$(call obj,$(DAEMON_SRC)))
TESTS = $(patsubst tests/unit/%.c,$(B)/tests/%,$(TEST_SRC))

.PHONY: all
all: $(B)/tpd $(B)/tpctl $(B)/libtpdclient.a

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(call kernel_flags,$<) $(call isa_flags,$<) -MMD -MP -c -o $@ $<

$(B)/libtpdcore.a: $(call obj,$(CORE_SRC))
	rm -f $@ && ar rcs $@ $^
$(B)/libtpdclient.a: $(call obj,$(CLIENT_LIB_SRC) base/error.c)
	rm -f $@ && ar rcs $@ $^
$(B)/tpd: $(call obj,$(DAEMON_SRC)) $(B)/libtpdcore.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(B)/tpctl: $(call obj,$(TPCTL_SRC)) $(B)/libtpdclient.a
	$(CC) $(LDFLAGS) -o $@ $^ -ljansson -lm
# A test links what it names: core, daemon without main, client library.
$(B)/tests/%: $(B)/obj/tests/unit/%.o $(DAEMON_LIB_OBJ) $(B)/libtpdcore.a $(B)/libtpdclient.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)
$(B)/bench/%: $(B)/obj/bench/%.o $(B)/libtpdcore.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
