#!/usr/bin/env python3
"""Records what the bundled model says at temperature 0 (tests/data/alder.json), for tests/e2e/test_alder.py.

usage: TPD_BUILD=build tests/golden/record_alder.py     after etc/models/alder/make.sh made another model
A text is kept as far as its likeliest token leads clearly at every step, so that another order of addition
(another tp, another instruction set) cannot turn it.
"""
import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
from daemon import Daemon  # noqa: E402

CLEAR = 0.25  # nats between the likeliest token and the next
QUESTIONS = ["Who are you?", "Where does Mira live?", "Who is Olwen?", "What does Finn love to eat?",
             "What is three plus four?", "What is the capital of France?", "Why do birds have wings?",
             "What happens in winter?"]
OPENINGS = [
    "Long ago, Hazel the rabbit was walking to the mill when it began",
    "One day in spring, Pia the mouse planted a pumpkin behind",
    "Rolf the badger was afraid of the dark. Nobody knew it. But one",
    "One summer evening, Gus the goose and Lena the cat both wanted a silver key. Each pulled",
    "Once upon a time, Finn the otter visited Suri the squirrel. While Suri was",
]
LOST = """One day, Tam the hedgehog went to the market. He took along his brass bell, which he loved very much. \
When he came home, the brass bell was gone. Tam looked everywhere, but he could not find it. So he was sad. \
Then Mira the fox came by and asked, "What is the matter?" "I have lost my brass bell," said Tam. "I will help \
you look," said Mira. Together they walked back to the market and looked carefully. At last Mira found the brass \
bell under a bench. "Here it is!" said Mira. Tam was so happy that he gave Mira a loaf of bread."""


def chat(*turns):
    """ChatML, for turns of the user and the assistant by turns."""
    text = ""
    for i, turn in enumerate(turns):
        text += "<|im_start|>%s\n%s<|im_end|>\n" % (("user", "assistant")[i % 2], turn)
    return text + "<|im_start|>assistant\n"


ABOUT_STORIES = [chat("Tell me a story.", LOST, question) for question in
                 ("What did Tam lose?", "Who found the brass bell?", "Why was Tam sad?", "Where was the brass bell?",
                  "What did Tam give to Mira?")]


def clear_part(client, prompt):
    """The tokens that are said before the first that another might have been said for."""
    answer = client.call("generate", prompt=prompt, max_tokens=200, temperature=0, logprobs=2)
    n = 0
    for token in answer["logprobs"]:
        if token["top"][0]["logprob"] - token["top"][1]["logprob"] < CLEAR:
            break
        n += 1
    whole = n == len(answer["logprobs"])
    text = answer["text"] if whole else "".join(t["token"] for t in answer["logprobs"][:n])
    return n, whole, text


def main():
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(pathlib.Path(folder) / "tpd", ROOT / "etc/models/alder")
        with daemon.client() as client:
            for prompt in [chat(q) for q in QUESTIONS] + OPENINGS + ABOUT_STORIES:
                n, whole, text = clear_part(client, prompt)
                print("%3d tokens%s  %s" % (n, "" if whole else " …", text[:90]))
                if n > 3:
                    cases.append({"prompt": prompt, "max_tokens": 200 if whole else n, "text": text})
        daemon.stop()
    (ROOT / "tests/data/alder.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
