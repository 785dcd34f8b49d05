#!/usr/bin/env python3
"""Writes the text that Alder learns from: stories and talks of Alder Valley, as JSON lines {"text": …}.

usage: make_text.py COUNT SEED >FILE     the same bytes for the same COUNT and SEED
"""
import json
import random
import re
import sys

import valley as v

CHOICE = re.compile(r"\{([^{}]*)\}")
SLOT = re.compile(r"\$([a-z]+2?)")
SENTENCE = re.compile(r'(^|[.!?] |\." |\n)("?)([a-z])|((?:asked|said|thought), ")([a-z])')


def person_slots(letter, person):
    name, kind, she, home, food, work, like = person
    him, his = ("her", "her") if she == "she" else ("him", "his")
    return {letter: name, letter + "k": kind, letter + "s": she, letter + "o": him, letter + "p": his,
            letter + "refl": him + "self", letter + "h": home, letter + "f": food, letter + "w": work,
            letter + "l": like}


def finish(text):
    """Sentences begin with a capital, also inside quotation marks; "i" stands alone as "I"."""
    text = re.sub(r"\bi\b", "I", text)
    text = re.sub(r"\ba (?=[aeiou])", "an ", text)
    text = re.sub(r" +", " ", text).strip()

    def capital(m):
        if m.group(3):
            return m.group(1) + m.group(2) + m.group(3).upper()
        return m.group(4) + m.group(5).upper()
    return SENTENCE.sub(capital, text)


class Teller:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, items):
        return items[self.random.randrange(len(items))]

    def expand(self, text):
        while "{" in text:
            text = CHOICE.sub(lambda m: self.pick(m.group(1).split("|")), text)
        return text

    def fill(self, text, slots):
        for _ in range(2):
            text = SLOT.sub(lambda m: slots[m.group(1)], text)
        return finish(text)

    def scene(self, people):
        """Everything that a plot may name, chosen once, so that a story and its answers agree."""
        place, place2 = self.random.sample(v.PLACES, 2)
        fear, wisdom = self.pick(v.FEARS)
        seed, plant = self.pick(v.SEEDS)
        find, meaning, goal = self.pick(v.FINDS)
        weather, wbegin, wend, wfeel = self.pick(v.WEATHER)
        broken, crack, mend = self.pick(v.BROKEN)
        cake, missing, was = self.pick(v.BAKING)
        dish, dishes = self.pick(v.DISHES)
        soothe, soothing = self.pick(v.SOOTHING)
        slots = dict(place=place, place2=place2, fear=fear, wisdom=wisdom, seed=seed, plant=plant,
                     find=find, meaning=meaning, goal=goal, weather=weather, wbegin=wbegin, wend=wend,
                     wfeel=wfeel, broken=broken, crack=crack, mend=mend, cake=cake, missing=missing, was=was,
                     thing=self.pick(v.THINGS), gift=self.pick(v.GIFTS), dish=dish, dishes=dishes,
                     soothe=soothe, soothing=soothing, hiding=self.pick(v.HIDING), season=self.pick(v.SEASONS), heavy=self.pick(v.HEAVY))
        for letter, person in zip("xyz", people):
            slots.update(person_slots(letter, person))
        return slots

    def story(self, first=None):
        """A story and what may be asked about it: text, hero, [(question, answer)]."""
        people = self.random.sample(v.PEOPLE, 3)
        if first:
            people = [first] + [p for p in people if p is not first]
        _, plot, asks = self.pick(v.PLOTS)
        slots = self.scene(people)
        text = self.fill(self.expand(plot), slots)
        return text, people, [(self.fill(q, slots), self.fill(a, slots)) for q, a in asks]

    # --- talks ------------------------------------------------------------------------------------

    def about_person(self):
        p = self.pick(v.PEOPLE)
        return self.pick([
            ("who is $x?", "$x is a $xl $xk. $xs lives $xh and $xw."),
            ("{where does $x live|where is the home of $x}?", "$x lives $xh."),
            ("what does $x {like to eat|love to eat}?", "$x loves to eat $xf."),
            ("what does $x do{| all day}?", "$x $xw."),
            ("what is $x like?", "$x is $xl."),
            ("who $xw?", "$x the $xk $xw."),
            ("who {loves|likes} $xf?", "$x the $xk loves $xf."),
            ("who lives $xh?", "$x the $xk lives $xh."),
            ("is $x a $xk?", "yes, $x is a $xk."),
            ("{who is the $xk|what is the name of the $xk}?", "the $xk is called $x."),
        ]) + (person_slots("x", p),)

    def about_world(self):
        kind = self.random.randrange(13)
        if kind == 0:
            a, b = self.pick(v.TRADES)
            return "what does a {%s} do?" % a, "a %s %s." % (a, b)
        if kind == 1:
            a, b = self.pick(v.SOUNDS)
            return "{what does a %s do|what sound does a %s make}?" % (a, a), "a %s %s." % (a, b)
        if kind == 2:
            a, b = self.pick(v.LIVES)
            return "where does a %s live?" % a, "a %s lives %s." % (a, b)
        if kind == 3:
            a, b = self.pick(v.COLOURS)
            return "what colour is %s?" % a, "%s is %s." % (a, b)
        if kind == 4:
            a, b = self.pick(v.OPPOSITES)
            if self.random.random() < 0.5:
                a, b = b, a
            return "what is the opposite of %s?" % a, "the opposite of %s is %s." % (a, b)
        if kind == 5:
            i = self.random.randrange(7)
            if self.random.random() < 0.5:
                return "what day comes after %s?" % v.DAYS[i], "after %s comes %s." % (v.DAYS[i], v.DAYS[(i + 1) % 7])
            return "what day comes before %s?" % v.DAYS[i], "before %s comes %s." % (v.DAYS[i], v.DAYS[i - 1])
        if kind in (6, 7):
            a = self.random.randrange(6)
            b = self.random.randrange(5)
            n = v.NUMBERS
            return "what is %s plus %s?" % (n[a], n[b]), "%s plus %s is %s." % (n[a], n[b], n[a + b])
        if kind == 8:
            i = self.random.randrange(10)
            return "what number comes after %s?" % v.NUMBERS[i], "after %s comes %s." % (v.NUMBERS[i], v.NUMBERS[i + 1])
        if kind == 9:
            a, b = self.pick(v.USES)
            return "what is %s good for?" % a, "with %s you can %s." % (a, b)
        if kind == 10:
            a, b = self.pick(v.SEASON_FACTS)
            return "what happens in %s?" % a, "in %s, %s." % (a, b)
        return self.pick(v.WHY)

    def fact(self):
        """A question and its answer."""
        slots = {}
        luck = self.random.random()
        if luck < 0.15:
            q, a = self.pick(v.SELF)
        elif luck < 0.5:
            q, a, slots = self.about_person()
        else:
            q, a = self.about_world()
        return self.fill(self.expand(q), slots), self.fill(self.expand(a), slots)

    def talk(self, turns):
        text = "".join("<|im_start|>%s\n%s<|im_end|>\n" % turn for turn in turns)
        return text[:-1]

    def facts(self):
        turns = []
        for _ in range(self.random.randrange(2, 7)):
            q, a = self.fact()
            turns += [("user", q), ("assistant", a)]
        return self.talk(turns)

    def story_talk(self):
        """Asked for a story, told one, then asked about it."""
        first = self.pick(v.PEOPLE)
        text, people, asks = self.story(first)
        name, kind, other = people[0][0], people[0][1], people[1][0]
        wish = self.expand(self.pick([
            "{tell me|i want to hear} a story about %s." % name,
            "{please tell|tell} me a story about %s and %s." % (name, other),
            "tell me a story about a %s." % kind,
            "{write|tell} a {short|little} story about %s the %s." % (name, kind),
        ]))
        if self.random.random() < 0.25:
            wish = self.expand("{tell me a story.|please tell me a story.|a story, please!}")
        turns = [("user", finish(wish)), ("assistant", text)]
        self.random.shuffle(asks)
        for q, a in asks[:self.random.randrange(0, 4)]:
            turns += [("user", q), ("assistant", a)]
        return self.talk(turns)

    def book(self):
        """One story, or a few after each other."""
        n = self.pick([1, 1, 1, 1, 2, 3])
        return "\n\n".join(self.story()[0] for _ in range(n))

    def document(self):
        luck = self.random.random()
        if luck < 0.40:
            return self.book()
        return self.story_talk() if luck < 0.75 else self.facts()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    teller = Teller(seed)
    for _ in range(count):
        print(json.dumps({"text": teller.document()}))


if __name__ == "__main__":
    main()
