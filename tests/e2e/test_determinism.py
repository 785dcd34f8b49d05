"""The same request gives the same text, whatever was cached before it and whatever runs beside it."""
import pytest

PROMPT = "Once upon a time there was a daemon that told the same story every night. " * 6


def ask(client, **params):
    return client.call("generate", **{"prompt": PROMPT, "max_tokens": 24, "ignore_eos": True, **params})


def test_greedy_answers_do_not_depend_on_what_is_cached(client):
    """Whole, again, after a prompt that shares its beginning, and after one that shares nothing."""
    first = ask(client, temperature=0)
    assert first["usage"]["prompt_tokens"] > 200
    for before in (PROMPT, PROMPT[:-9], PROMPT + "And", "Something else."):
        ask(client, prompt=before, temperature=0, max_tokens=3)
        again = ask(client, temperature=0)
        assert (again["text"], again["tokens"]) == (first["text"], first["tokens"])


def test_a_seed_is_used_and_gives_the_same_text(client):
    one, same, other = (ask(client, seed=seed, temperature=1)["text"] for seed in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_seed_gives_the_same_text_at_any_number_of_slots_and_in_any_company(start, client, slots):
    expected = {seed: ask(client, seed=seed, temperature=1)["text"] for seed in range(5)}
    daemon = start("--slots", slots)
    with daemon.client() as company:
        ids = {seed: company.send("generate", {"prompt": PROMPT, "max_tokens": 24, "ignore_eos": True,
                                               "seed": seed, "temperature": 1}) for seed in range(5)}
        assert {seed: company.result(id)["text"] for seed, id in ids.items()} == expected
