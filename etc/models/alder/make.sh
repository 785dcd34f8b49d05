#!/bin/sh
# Makes Alder anew, with nothing but this folder and tpd: writes the text, learns the tokenizer, draws the
# weights, trains them, and puts tokenizer.json and model.safetensors into OUT (default: this folder).
#
# usage: [B=build] make.sh [OUT]      about a quarter of an hour on two quiet cores
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here}
B=$(cd "${B:-$here/../../../build}" && pwd)
PYTHON=${PYTHON:-python3}
TEXTS=${TEXTS:-70000}
SEED=1

run=$(mktemp -d)
daemon=
stop() {
    trap - EXIT INT TERM
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || :
    [ -z "$daemon" ] || wait "$daemon" 2>/dev/null || :
    rm -rf "$run"
}
trap stop EXIT
trap 'exit 130' INT TERM

mkdir -p "$run/model" "$run/data" "$out"
export PYTHONDONTWRITEBYTECODE=1
echo "writing $TEXTS texts"
"$PYTHON" "$here/make_text.py" "$TEXTS" "$SEED" >"$run/data/valley.jsonl"
echo "learning a tokenizer"
head -n 20000 "$run/data/valley.jsonl" | "$PYTHON" "$here/make_tokenizer.py" 1024 >"$run/model/tokenizer.json"
cp "$here/config.json" "$here/generation_config.json" "$here/tokenizer_config.json" "$run/model"

echo "training"
TPD_SOCKET=$run/tpd.sock
export TPD_SOCKET
"$B/tpd" --model "$run/model" --init "$SEED" --tp 1 --state-dir "$run/state" --data-dir "$run/data" 2>"$run/log" &
daemon=$!
tries=0
until "$B/tpctl" --quiet ping >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ "$tries" -ge 300 ] || ! kill -0 "$daemon" 2>/dev/null; then
        cat "$run/log" >&2
        exit 1
    fi
    sleep 0.1
done
"$B/tpctl" finetune valley.jsonl --name alder --wait --set method=full --set loss_on=all \
    --set seq_len=512 --set batch_size=4 --set epochs=1 --set lr=0.004 --set warmup_ratio=0.03 \
    --set weight_decay=0.1 --set eval_fraction=0.005 --set eval_every=1000 --set save_every=1000
cp "$run/model/tokenizer.json" "$run/state/models/alder/model.safetensors" "$out"
"$B/tpctl" shutdown --quiet >/dev/null 2>&1 || :
echo "made $out/model.safetensors"
