"""What guessing ahead brings and costs: tokens a second of decode beside plain generation, in turns.

bench_speculative.py [CASE…]; without one, all of them. Reads B, BENCH_RUNS.
 never    a draft model none of whose guesses comes true: what it costs that there is one
 always   a model that is its own draft model, all of whose guesses come true: as slow a draft model as can be
 repeats  a text that repeats one token (its logits are told to): all that copying can bring
"""
import sys

from common import RUNS, Daemon, median, random_model, spread

TOKENS = 96
PROMPT = list(range(300, 332))
REPEATED = 300


def never():
    """Models of the same vocabulary that know nothing of each other; a text that never repeats."""
    return (random_model("llama-1.1b", "q4_0"), ["--draft", random_model("llama-68m", "q4_0")],
            ("draft", "auto"), {"repetition_penalty": 2})


def always():
    model = random_model("smollm2-135m", "bf16")
    return model, ["--draft", model], ("draft", "auto"), {}


def repeats():
    return random_model("smollm2-135m", "bf16"), [], ("ngram", "auto"), {"logit_bias": {str(REPEATED): 1000}}


CASES = {"never": never, "always": always, "repeats": repeats}


def ask(client, how, more):
    timings = client.call("generate", **{"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0,
                                         "ignore_eos": True, "speculative": how, **more})["timings"]
    return timings["tokens_per_s"], timings["draft_tokens"], timings["accepted_tokens"]


def measure(name):
    model, flags, ways, more = CASES[name]()
    with Daemon(model, "--ctx", 512, "--slots", 1, *flags) as daemon:
        for how in ("off", *ways):  # a daemon that has just begun knows nothing of its steps
            ask(daemon.client, how, more)
        rounds = [{how: ask(daemon.client, how, more) for how in ("off", *ways)} for _ in range(RUNS)]
    for how in ways:
        ratios = [r[how][0] / r["off"][0] for r in rounds]
        drafted, accepted = (sum(r[how][i] for r in rounds) / RUNS for i in (1, 2))
        print("| %s | %s | %.1f | %.1f | %.2f | ±%.0f %% | %.0f of %.0f |" % (
            name, how, median(r["off"][0] for r in rounds), median(r[how][0] for r in rounds),
            median(ratios), spread(ratios), accepted, drafted), flush=True)


def main():
    names = sys.argv[1:] or list(CASES)
    print("speculation: tokens a second of decode at batch 1, %d tokens, medians of %d rounds\n" % (TOKENS, RUNS))
    print("| case | `speculative` | off | on | on / off | | came true |\n|---|---|---|---|---|---|---|")
    for name in names:
        measure(name)


main()
