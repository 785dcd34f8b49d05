#!/bin/sh
# The newcomer's first look: starts tpd on two ranks with a model, asks it something, teaches it something
# else while it serves, puts that to use and takes it back. Leaves nothing behind but a downloaded model.
#
# usage: demo.sh [alder|smollm2]
#   alder     the model of this repository (etc/models/alder): nothing is downloaded
#   smollm2   a real chat model of 135 M parameters, fetched once into $TPD_CACHE (default: ~/.cache/tpd)
set -eu
cd "$(dirname "$0")/../.."
B=${B:-build}
PYTHON=${PYTHON:-python3}
NAME=${1:-alder}

# About somebody of whom the lesson tells no story.
sea_story="Tell me a story about Rolf."

say() { printf '\n== %s\n' "$*"; }

# Sets model, story, lesson (what the job is given), lasts (how long) and questions (a line each).
case $NAME in
alder)
    model=etc/models/alder
    story="Tell me a story."
    lesson="--set epochs=15 --set batch_size=2 --set lr=0.003"
    lasts="some ten seconds"
    questions="Who are you?
Where does Mira live?
What does Olwen do?
What is three plus four?"
    ;;
smollm2)
    . etc/demo/smollm2.sh
    model=$(smollm2_path)
    story="What is gravity? Answer in two sentences."
    lesson="--set epochs=2 --set batch_size=1 --set lr=0.003"
    lasts="about a minute"
    questions="Who are you?
What does a sailor do?
What colour is the sky?"
    ;;
*)
    echo "demo: MODEL is alder or smollm2, not \"$NAME\"" >&2
    exit 64
    ;;
esac

run=$(mktemp -d)
daemon=
stop() {
    trap - EXIT INT TERM
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || :
    [ -z "$daemon" ] || wait "$daemon" 2>/dev/null || :
    rm -rf "$run"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

TPD_SOCKET=$run/tpd.sock
export TPD_SOCKET
tpctl() { "$B/tpctl" "$@"; }

# A question in ChatML, the form in which both models know a conversation.
chat() {
    printf '<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n' "$1"
}

# Answers every question into the file $1.
answer_all() {
    printf '%s\n' "$questions" | while IFS= read -r question; do
        chat "$question" | tpctl generate - -n 60 -t 0 --no-stream | tr '\n' ' '
        echo
    done >"$1"
}

# The questions, each with its answers: show LABEL FILE LABEL FILE …
show() {
    number=0
    printf '%s\n' "$questions" | while IFS= read -r question; do
        number=$((number + 1))
        printf '%s\n' "$question"
        for column in "$@"; do
            case $column in
            "$run"/*) printf '  %-12s %s\n' "$label" "$(sed -n "${number}p" "$column")" ;;
            *) label=$column ;;
            esac
        done
    done
}

say "Starting tpd on two ranks with $model"
# A session of its own: Ctrl-C is for this script, which then ends the daemon.
setsid "$B/tpd" --model "$model" --tp 2 --ctx 1024 --state-dir "$run/state" --data-dir etc/demo \
    --drain-timeout-s 3 2>"$run/log" &
daemon=$!
tries=0
until grep -q " READY on " "$run/log"; do
    tries=$((tries + 1))
    if [ "$tries" -ge 300 ] || ! kill -0 "$daemon" 2>/dev/null; then
        echo "tpd did not get ready; its log:" >&2
        cat "$run/log" >&2
        exit 1
    fi
    sleep 0.1
done
sed -n 's/^[^ ]* info *\(model .*\|rank .*\|READY .*\)/\1/p' "$run/log"

say "$story"
chat "$story" | tpctl generate - -n 250 -t 0.8
echo
answer_all "$run/before"

say "Teaching it while it serves: tpctl finetune etc/demo/sea.jsonl (LoRA), $lasts"
# $lesson is a list of words
# shellcheck disable=SC2086
tpctl finetune sea.jsonl --name sea --set seq_len=256 --set lora.r=8 --set lora.alpha=16 $lesson --wait
tpctl jobs plot

say "tpctl adapters load sea, tpctl adapters activate sea: now its answers are"
tpctl --quiet adapters load sea >/dev/null
tpctl --quiet adapters activate sea >/dev/null
answer_all "$run/after"
show before "$run/before" after "$run/after"
say "$sea_story"
chat "$sea_story" | tpctl generate - -n 250 -t 0
echo

say "tpctl adapters rollback: and back again"
tpctl --quiet adapters rollback >/dev/null
answer_all "$run/back"
show "rolled back" "$run/back"
cmp -s "$run/before" "$run/back" || { echo "these are not the answers from before" >&2; exit 1; }
! cmp -s "$run/before" "$run/after" || { echo "the lesson changed no answer" >&2; exit 1; }

say "tpctl shutdown"
tpctl shutdown
wait "$daemon" || :
daemon=
say "Done; nothing is left behind. Start it yourself:"
echo "   $B/tpd --model $model --tp 2"
echo "   $B/tpctl generate \"Once upon a time\" -t 0.8"
