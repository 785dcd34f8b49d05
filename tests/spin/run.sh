#!/bin/sh
# Explores every interleaving of the flag protocols with spin: safety (assertions) and progress (no state in
# which some rank waits for ever). What is meant to fail must fail: else the model proves nothing.
set -u
cd "$(dirname "$0")"
command -v spin >/dev/null || { echo "skipped: spin is not installed (Debian package spin)"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

explore() { # explore right|wrong MODEL DEFINES…
    want=$1 model=$2
    shift 2
    (cd "$work" && spin -a "$@" "$OLDPWD/$model.pml" >spin.log 2>&1 &&
        ${CC:-gcc} -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=2000 -o pan pan.c && ./pan -m1000000 >pan.log 2>&1)
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$work/pan.log")
    if ! grep -q "^State-vector" "$work/pan.log"; then got=broken
    elif grep -q "max search depth too small\|out of memory" "$work/pan.log"; then got=unfinished
    elif grep -q "errors: 0" "$work/pan.log"; then got=right
    else got=wrong; fi
    if [ "$got" = "$want" ]; then echo "ok   $model $* ($states states)"
    else
        failed=1
        echo "FAIL $model $*: $got, not $want"
        tail -n 20 "$work/pan.log"
    fi
    rm -f "$work"/*
}

for n in 2 3; do
    explore right staged -DN=$n
    explore wrong staged -DN=$n -DSLOTS=1
    explore right direct -DN=$n
    explore wrong direct -DN=$n -DNO_END
    explore right ring -DN=$n
done
# At n = 2 a lane without credit passes only by luck of the tiles; at 3 it is overwritten at once.
explore wrong ring -DN=3 -DNO_CREDIT
exit $failed
