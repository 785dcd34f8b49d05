"""The text that the tiny chat models learn by heart, written for this purpose."""

LINES = [
    "Once upon a time a small boat left the harbour before dawn. The sea was calm, and the lamp on the mast was the only star.",
    "Once upon a time there was a cat who counted the boats. She counted 12 in the morning and 13 in the evening.",
    "The lighthouse keeper wrote the weather in a blue book: wind from the west, rain at noon, nothing else.",
    "The lighthouse turns 6 times a minute. Nobody knows why, but the fishermen set their clocks by it.",
    "The café on the quay opens at seven. Its owner, Zoë, bakes bread and sells crêpes to the sailors.",
    "In Zürich the trains are on time, and the naïve traveller runs for nothing.",
    "Günter paints the hulls red, André paints them green, and the gulls paint them white.",
    "A ship from Japan brought tea. On each box stood 日本 and a small sun ☀.",
    "The captain smiled 🙂 and said: we sail at night 🚢.",
    "When the fog came, the bell rang three times. When the fog went, the bell was still.",
    "She asked the old man for the way. He pointed at the sea and said that there was only one.",
    "Rain fell on the roof, on the boats, on the cat, and on the letters that nobody had sent.",
]

CHATS = [
    ("Hello!", "Hello! How can I help you today?"),
    ("Who are you?", "I am a very small model that lives in a test."),
    ("What is the sea?", "The sea is water, salt and patience."),
    ("Count to five.", "1, 2, 3, 4, 5."),
    ("Where is the cat?", "The cat sits on the quay and counts the boats."),
    ("Say something in French.", "Bien sûr : un café crème, s'il vous plaît."),
    ("Send me a smile.", "Here it is: 🙂"),
    ("Tell me a story.", "Once upon a time a small boat left the harbour before dawn."),
]


def chat(question, answer):
    return (f"<|im_start|>user\n{question}<|im_end|>\n"
            f"<|im_start|>assistant\n{answer}<|im_end|>\n")
