"""Guessing ahead changes when tokens come, never which."""
import pytest

from daemon import ROOT

ALDER = ROOT / "etc/models/alder"
PROMPTS = ["Once upon a time, Mira the fox", "one two three four one two three four one two three",
           "Who are you? Who are you? Who are you?", "a b a b a b a b"]
KINDS = [{"temperature": 0}, {"temperature": 0.9, "seed": 5}, {"temperature": 0.9, "seed": 6, "top_k": 20},
         {"temperature": 0, "repetition_penalty": 1.3}, {"temperature": 0, "stop": [" the"]},
         {"temperature": 0, "logprobs": 3}]


def ask(client, prompt, **more):
    return client.call("generate", prompt=prompt, max_tokens=150, ignore_eos=True, **more)


@pytest.fixture(scope="module")
def alder(tmp_path_factory):
    from daemon import Daemon
    daemon = Daemon(tmp_path_factory.mktemp("spec"), ALDER, "--tp", 2, "--slots", 4)
    yield daemon
    assert daemon.stop() == 0, daemon.log()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_tokens_are_those_of_plain_generation(alder, kind):
    with alder.client() as client:
        guessed = 0
        for prompt in PROMPTS:
            plain = ask(client, prompt, speculative="off", **kind)
            ahead = ask(client, prompt, speculative="ngram", **kind)
            for key in ("text", "tokens", "finish_reason", "stop", "logprobs", "usage"):
                if key != "usage":
                    assert ahead.get(key) == plain.get(key), (prompt, key)
            assert ahead["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
            assert plain["timings"]["draft_tokens"] == 0
            assert 0 <= ahead["timings"]["accepted_tokens"] <= ahead["timings"]["draft_tokens"]
            guessed += ahead["timings"]["draft_tokens"]
        assert guessed > 0 or kind != KINDS[0]


def test_what_repeats_comes_true(alder):
    with alder.client() as client:
        # Nothing but one token may follow: every guess is right.
        answer = client.call("generate", prompt="a b", max_tokens=100, temperature=0, speculative="ngram",
                             logit_bias={"300": 1000}, ignore_eos=True)
        assert answer["tokens"] == [300] * 100
        assert answer["timings"]["accepted_tokens"] > 60


def test_guesses_change_nothing_in_company_nor_in_the_cache(alder):
    with alder.client() as client:
        alone = [ask(client, p, temperature=0)["tokens"] for p in PROMPTS]
        for _ in range(3):
            ids = [client.send("generate", {"prompt": p, "max_tokens": 150, "ignore_eos": True, "temperature": 0, "stream": i % 2 == 0,
                                            "speculative": ("ngram", "off")[(i + j) % 2]})
                   for j in range(4) for i, p in enumerate(PROMPTS)]
            got = [client.result(id)["tokens"] for id in ids]
            assert got == alone * 4
        # What speculation left in the cache is right: longer prompts go on from it.
        for p, tokens in zip(PROMPTS, alone):
            prompt = client.call("tokenize", text=p, special=True)["tokens"] + tokens[:40]
            assert ask(client, prompt, temperature=0)["tokens"][:20] == tokens[40:60]
