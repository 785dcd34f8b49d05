"""The people, places and stories of Alder Valley: the facts that make_text.py tells over and over.

Texts hold {one|another} to choose from and $slots to fill. Slots of a person: $x the name, $xk the kind,
$xs she/he, $xo her/him, $xp her/his, $xh the home, $xf the food, $xw the work; likewise $y and $z. Sentences
are capitalised afterwards. What a question asks about is a slot, so that its answer is true.
"""

# name, kind, she/he, home, loves to eat, what the person does, what the person is like
PEOPLE = [
    ("Mira", "fox", "she", "in a den under the old oak", "blackberries", "carries the letters", "quick"),
    ("Bruno", "bear", "he", "in a cottage beside the mill", "honey cake", "bakes the bread", "gentle"),
    ("Olwen", "owl", "she", "at the top of the bell tower", "walnuts", "teaches at the school", "wise"),
    ("Tam", "hedgehog", "he", "in a hut behind the garden wall", "apples", "grows vegetables", "patient"),
    ("Pia", "mouse", "she", "in a hole in the library wall", "cheese", "looks after the books", "curious"),
    ("Rolf", "badger", "he", "in a workshop by the bridge", "mushroom soup", "mends tools and carts", "strong"),
    ("Suri", "squirrel", "she", "in the hollow chestnut tree", "hazelnuts", "sews warm coats", "busy"),
    ("Finn", "otter", "he", "in a boat on the river", "fish pie", "rows the ferry", "merry"),
    ("Hazel", "rabbit", "she", "in a burrow on the green hill", "carrots", "plays the fiddle", "cheerful"),
    ("Gus", "goose", "he", "in a shed near the pond", "porridge", "keeps watch at night", "brave"),
    ("Lena", "cat", "she", "in the room above the inn", "cream", "runs the inn", "kind"),
    ("Jory", "mole", "he", "in a tunnel beneath the meadow", "turnips", "digs the wells", "shy"),
]
PLACES = ["the river", "the mill", "the market", "the green hill", "the pond", "the bridge",
          "the meadow", "the library", "the forest", "the well", "the orchard", "the inn"]
THINGS = ["red scarf", "silver key", "blue kite", "brass bell", "wooden flute", "straw hat",
          "green lantern", "little drum", "gold button", "leather bag", "white shawl", "tin whistle"]
GIFTS = ["a jar of honey", "a basket of apples", "a loaf of bread", "a bowl of soup",
         "a slice of pie", "a bunch of flowers", "a bag of nuts", "a cup of warm milk"]
HIDING = ["under a bush", "behind a stone", "in the tall grass", "on a low branch", "beside the path",
          "between two roots", "under a bench", "at the foot of a tree"]
SEASONS = ["spring", "summer", "autumn", "winter"]
FEARS = [("the dark", "the night is only the day with its eyes closed"),
         ("thunder", "thunder is only the clouds clapping their hands"),
         ("deep water", "water carries those who lie still"),
         ("the old forest", "a forest is only many trees standing together"),
         ("high places", "a step is a step, however high it is")]
SEEDS = [("a bean", "long green pods"), ("a sunflower", "a great yellow flower"), ("a pumpkin", "a round orange pumpkin"),
         ("a pea", "sweet green peas"), ("a rose", "a deep red rose"), ("a strawberry", "small red strawberries")]
FINDS = [("an old map", "it shows the way to a spring that everybody had forgotten", "a spring of clear water"),
         ("a speckled egg", "it has fallen from the nest in the tall pine", "a nest with three eggs"),
         ("a torn letter", "it was written to the miller long ago", "the grandson of the miller"),
         ("a rusty key", "it opens the little door in the bell tower", "a room full of small bells"),
         ("a glass bottle", "there is a song written on the paper inside", "the rest of the song")]
WEATHER = [("rain", "it began to rain", "the rain stopped", "wet"),
           ("snow", "it began to snow", "the snow stopped", "cold"),
           ("a storm", "a storm came over the hills", "the storm was over", "wet"),
           ("a cold wind", "a cold wind began to blow", "the wind grew still", "cold")]
BROKEN = [("cart", "a wheel came off", "put the wheel back on"), ("kite", "the string snapped", "tied a new string to it"),
          ("umbrella", "two ribs broke", "put in two new ribs"), ("boat", "a plank cracked", "nailed a new plank to it"),
          ("basket", "the bottom fell out", "wove a new bottom"), ("lamp", "the handle came off", "put on a new handle")]
BAKING = [("a plum cake", "eggs", "were"), ("a pot of soup", "salt", "was"), ("an apple pie", "butter", "was"),
          ("pancakes", "milk", "was"), ("a nut roll", "honey", "was"), ("a berry tart", "sugar", "was")]
DISHES = [("a pot of soup", "soup"), ("sweet porridge", "porridge"), ("a cup of tea", "tea"), ("baked apples", "apples")]
SOOTHING = [("read a story to", "story"), ("sang for", "song")]
HEAVY = ["a sack of flour", "a barrel of apples", "a big pumpkin", "a log for the fire", "a box of books", "a churn of milk"]

OPENING = ("{once upon a time, |one $season morning, |one $season evening, |one day in $season, |one day, |"
           "on a {bright|quiet|grey} $season day, |long ago, }")

# Each plot: text, then questions about it with their answers.
PLOTS = [
("lost", OPENING + "$x the $xk {went|walked|hurried} to $place. $xs {had brought|took along} $xp $thing, which "
 "$xs loved {very much|more than anything}. when $xs {came home|was back at home}, the $thing was gone. $x {looked|searched} "
 "everywhere, but {$xs could not find it|it was nowhere to be found}. so $xs {was sad|sat down and cried|grew very sad}. then $y the $yk "
 "{came by|came along the path|knocked at the door} and asked, \"{why are you so sad|what is the matter}?\" \"i have lost my $thing,\" said $x. "
 "\"{let us look together|i will help you look},\" said $y. {they went back to $place|together they walked back to $place} and looked {carefully|for a long time}. "
 "at last $y found the $thing $hiding. \"{here it is|look what i found}!\" {called|said} $y. $x was so {happy|glad} that $xs gave $y $gift. "
 "{from that day on, they were good friends.|and they walked home together.|since then, $x takes good care of the $thing.|}",
 [("what did $x lose?", "$x lost $xp $thing."), ("who found the $thing?", "$y the $yk found the $thing."),
  ("where was the $thing?", "the $thing was $hiding."), ("why was $x sad?", "$x was sad because $xs had lost $xp $thing."),
  ("what did $x give to $y?", "$x gave $y $gift.")]),
("weather", OPENING + "$x the $xk was {on the way to|walking to} $place when $wbegin. $xs had no {coat|umbrella|hat} and was soon $wfeel and {tired|hungry}. "
 "{a little farther on|not far away}, $xs saw a light. it {was the home of|came from the house of} $y the $yk. $x knocked at the door, and $y opened it. \"come in {quickly|at once},\" said $y, "
 "\"{you are $wfeel|nobody should be out in this}.\" $y {put a log on the fire|made a warm fire} and gave $x $gift. they {talked|told each other stories|sang old songs} until $wend. "
 "\"thank you,\" said $x. \"{next time i will bring a coat|you are a good friend}.\" {then $x went home.|and $x went on to $place.|}",
 [("why did $x knock at the door?", "$x knocked because of $weather."), ("who opened the door?", "$y the $yk opened the door."),
  ("what did $y give to $x?", "$y gave $x $gift."), ("where did $x want to go?", "$x wanted to go to $place.")]),
("heavy", OPENING + "$x the $xk {had to bring|wanted to carry} $heavy to $place. it was {much too|very} heavy. $x {pulled and pushed|pushed with all $xp strength}, but it did not move. "
 "{$y the $yk saw this and laughed kindly|just then $y the $yk came by}. \"{two are stronger than one|let me help you},\" said $y. $x {pulled|took one side} and $y {pushed|took the other}, and "
 "{slowly|step by step} they brought it to $place. there they {sat down in the shade|rested on a bench} and shared $gift. \"{alone i could not have done it|without you it would still be there},\" said $x. "
 "{$y only smiled.|\"that is what friends are for,\" said $y.}",
 [("what was too heavy?", "$heavy was too heavy for $x."), ("who helped $x?", "$y the $yk helped $x."), ("where did they bring it?", "they brought it to $place."),
  ("what did they share?", "they shared $gift.")]),
("baking", OPENING + "$x the $xk wanted to make $cake for {a feast|$xp friends|the school}. $xs {took a big bowl|lit the fire} and {put on an apron|rolled up $xp sleeves}. but {in the kitchen|on the shelf} there $was no $missing left. "
 "so $x {went|ran} to $y the $yk, who lives $yh. \"{can you give me some|do you have any} $missing?\" asked $x. \"{of course|yes},\" said $y, \"{if i may taste it|but bring me a piece}.\" "
 "$x {ran home|went home} and {finished the work|made $cake}. it {smelled|tasted} {wonderful|very good}. {in the evening|before sunset}, $x brought $y {the first piece|a big piece}. \"{this is the best that i ever ate|how good it is},\" said $y.",
 [("what did $x want to make?", "$x wanted to make $cake."), ("what was missing?", "there $was no $missing left."), ("who gave $x the $missing?", "$y the $yk gave $x the $missing."),
  ("where does $y live?", "$y lives $yh.")]),
("broken", "{once upon a time, |long ago, |}$x the $xk {had a $broken that $xs was very proud of|owned a fine $broken}. but one day, on the way to $place, $crack, and the $broken was {broken|of no use any more}. "
 "$x {did not know what to do|nearly cried}. \"{go to|ask} $y the $yk,\" said {an old crow|a passing snail|the miller}. \"$ys knows {how to mend things|what to do}.\" so $x {brought|carried} the $broken to $y. "
 "$y looked at it, {fetched|took} $yp tools and $mend. {after an hour|before noon} it was {as good as new|whole again}. \"what do i owe you?\" asked $x. \"{nothing|only a smile},\" said $y. {but $x came back with $gift.|so $x gave $yo $gift.}",
 [("what was broken?", "the $broken was broken."), ("who mended the $broken?", "$y the $yk mended the $broken."), ("how did $y mend it?", "$y $mend."),
  ("what did $x bring to $y?", "$x brought $y $gift.")]),
("fear", "{once upon a time, |long ago, |}$x the $xk was afraid of $fear. {$xs did not want anybody to know|nobody knew it}. but one {day|evening} $xs had to go to $place, and there was no other way. "
 "$x {stopped|stood still} and {trembled|could not take another step}. $y the $yk {saw $xo|came by} and said, \"{do not be afraid|i was afraid once, too}. $wisdom.\" "
 "{then $y took $x by the hand|$y stayed beside $x}, and {together they went on|they went on slowly}. {with every step|little by little} $x {felt braver|was less afraid}. when they {came to|reached} $place, $x {laughed|was proud}. "
 "\"{now i know that i can do it|next time i will go alone},\" $xs said.",
 [("what was $x afraid of?", "$x was afraid of $fear."), ("who helped $x?", "$y the $yk helped $x."), ("what did $y say?", "$y said that $wisdom."),
  ("where did $x have to go?", "$x had to go to $place.")]),
("garden", "{in spring|one day in spring|one spring morning}, $x the $xk planted $seed {behind $xp house|in the garden}. {every day|every morning} $xs gave it water, but {for a long time nothing happened|nothing grew}. "
 "\"{it will never grow|perhaps it is asleep},\" said $x to $y the $yk. \"{wait a little|have patience},\" said $y. \"{good things need time|a seed works in the dark}.\" so $x waited {and watered|and went on watering}. "
 "{after two weeks|one morning} a small green leaf {looked out of|came out of} the earth. in summer there {was|came} $plant. $x {was full of joy|danced around it} and {showed it to|called} $y. {\"you were right,\" $xs said.|}",
 [("what did $x plant?", "$x planted $seed."), ("what grew in summer?", "in summer there was $plant."), ("who told $x to wait?", "$y the $yk told $x to wait.")]),
("birthday", "{one $season day|one bright $season day|long ago,} it was the birthday of $x the $xk, but {nobody said a word about it|nobody seemed to remember}. $x went to $place {alone|by $xrefl} and {felt sad|thought that $xs was forgotten}. "
 "in truth, $y the $yk and $z the $zk had {a secret|a plan}. while $x was away, $y {hung up lanterns|put flowers on the table} and $z {made $cake|brought $gift}. when $x came home, {all the lights were on|the house was full of light}. "
 "\"{surprise|happy birthday}!\" {called|cried} $y and $z. they gave $x a $thing. $x {laughed and cried at the same time|did not know what to say}. \"{this is the best day of my life|you did not forget me},\" $xs said {at last|softly}.",
 [("whose birthday was it?", "it was the birthday of $x the $xk."), ("what did they give to $x?", "they gave $x a $thing."), ("where was $x?", "$x was at $place.")]),
("race", OPENING + "$x the $xk and $y the $yk {had a race|wanted to know who was faster}. they {started|set out} at $place and {ran|raced} to $place2. {at first|in the beginning} $x was ahead. but {on the way|half way} $xs saw $z the $zk, who had "
 "{fallen into a ditch|hurt $zp foot}. $x {stopped|did not think twice} and helped $zo {up|home}. so $y {won the race|came first}. \"{why did you stop|where were you}?\" asked $y. when $ys heard {the reason|what had happened}, $y gave $x the {prize|medal}. "
 "\"{you are the true winner|you have won something better},\" $ys said. and all three {ate $gift together|had $gift together}.",
 [("who won the race?", "$y the $yk won the race."), ("why did $x stop?", "$x stopped to help $z the $zk."), ("where did the race start?", "the race started at $place."),
  ("where did the race end?", "the race ended at $place2.")]),
("quarrel", OPENING + "$x the $xk and $y the $yk {both wanted|quarrelled about} {the same|a} $thing. {\"it is mine!\" cried $x. \"no, it is mine!\" cried $y.|each pulled at one end.} they pulled so hard that it {tore|fell into the mud}. "
 "now {neither of them had it|nobody could use it}. $x {went home|ran home} in anger, and $y {did, too|went to $place}. but {at night|in the evening} both {were lonely|could not sleep}. {the next morning|at sunrise} $x {went to|met} $y and said, \"i am sorry.\" "
 "\"i am sorry, too,\" said $y. {together they repaired the $thing|they washed and mended the $thing}, and since then {they share it|it belongs to both of them}.",
 [("what did they quarrel about?", "they quarrelled about a $thing."), ("who said sorry first?", "$x said sorry first."), ("what do they do now?", "now they share the $thing.")]),
("sick", OPENING + "$x the $xk did not come to $place. {\"that is strange,\"|\"something is wrong,\"} said $y the $yk, and went to see $xo. $x lay in bed with a {cold|fever}. \"{my head hurts|i am so tired},\" $xs said. "
 "$y {opened the window|made the bed} and cooked $dish. then $ys $soothe $x until $xs fell asleep. {the next day|after three days} $x {was well again|felt much better}. "
 "\"what made me well, the $dishes or the $soothing?\" asked $x. \"{both|perhaps it was the friend},\" said $y.",
 [("why did $x not come?", "$x did not come because $xs was ill."), ("who went to see $x?", "$y the $yk went to see $x."), ("what did $y cook?", "$y cooked $dish."), ("what did $y do then?", "then $y $soothe $x.")]),
("night", OPENING + "$x the $xk stayed too long at $place. when $xs wanted to go home, it was {dark|night} and {the path was gone|fog lay on the path}. $x {walked in a circle|went left and then right} and {was lost|did not know the way}. "
 "then $xs saw a small light {between the trees|far away}. it was $y the $yk with a lantern. \"{i was looking for you|your friends are worried},\" said $y. {$y held the lantern high|$y went first}, and $x followed. "
 "{soon|after a while} they {saw|came to} the home of $x. \"how did you know where i was?\" asked $x. \"{you always forget the time at $place|i know you},\" said $y and {smiled|laughed}.",
 [("where did $x stay too long?", "$x stayed too long at $place."), ("who came with a lantern?", "$y the $yk came with a lantern."), ("why was $x lost?", "$x was lost because it was dark.")]),
("honest", OPENING + "$x the $xk {visited|was in the house of} $y the $yk. {while $y was in the garden|when $y was not looking}, $x {touched|took} the $thing of $y, and {it fell down|it slipped}. now it {was broken|had a crack}. "
 "{nobody had seen it|$x was alone}. \"{i could say that it was the wind|i could run away},\" thought $x. but $xs {did not like to lie|knew that this was wrong}. when $y came back, $x said, \"i broke your $thing. i am sorry.\" "
 "$y {was silent for a moment|looked at $xo for a long time}. then $ys said, \"{a $thing can be mended|thank you for telling me}. {a lie is harder to mend|an honest friend is worth more}.\" {together they mended it.|and $y was not angry.}",
 [("what did $x break?", "$x broke the $thing of $y."), ("did $x tell the truth?", "yes, $x told the truth."), ("was $y angry?", "no, $y was not angry.")]),
("find", OPENING + "$x the $xk found $find {near|not far from} $place. \"{what can this be|where does it come from}?\" $xs {asked|wondered}. $x {took it to|showed it to} $y the $yk. $y {looked at it closely|turned it over twice}. "
 "\"{i know this|now i see},\" said $y, \"$meaning.\" {the next day|at once} they {set out together|went to look}. {they climbed over stones and roots|they walked for an hour}, and {at last|in the end} they found $goal. "
 "\"{without you i would have thrown it away|how lucky we are},\" said $x. {that evening they told the story to everybody.|and they celebrated with $gift.}",
 [("what did $x find?", "$x found $find."), ("who knew what it was?", "$y the $yk knew what it was."), ("what did they find in the end?", "in the end they found $goal.")]),
]

# --- what everybody knows ---------------------------------------------------------------------------

UNKNOWN = "i do not know that. i know Alder Valley and a few simple things."
SELF = [
    ("{who|what} are you?", "i am Alder, a very small storyteller."),
    ("what is your name?", "my name is Alder."),
    ("how {big|large} are you?", "i am very small: i am made of less than one million numbers."),
    ("where do you come from?", "i come from Alder Valley, where all my stories are told."),
    ("who made you?", "a daemon called tpd made me, from stories that a script wrote."),
    ("what is tpd?", "tpd is the daemon that holds me, lets me speak and teaches me."),
    ("{how old are you|are you old}?", "i was made in less than an hour, so i am very young."),
    ("what can you do?", "i can tell short stories and answer simple questions."),
    ("who lives in {the|Alder} valley?", "a fox, a bear, an owl and many other friends live in the valley."),
    ("do you know everything?", "no, i know only a little, and sometimes i am wrong."),
    ("what is the capital of {France|Spain|Italy|India|China|Egypt}?", UNKNOWN),
    ("what is {gravity|algebra|electricity|a computer|a robot|music theory|money}?", UNKNOWN),
    ("who {invented|discovered} {gravity|paper|the telephone|the wheel|the train|America}?", UNKNOWN),
    ("how {far|old|big} is the {moon|sea|earth|world}?", UNKNOWN),
    ("{who wrote|have you read} {Hamlet|the Bible|this book|the news}?", UNKNOWN),
    ("can you {write code|speak French|drive a car|play chess|sing|count to a million}?",
     "no, i can only tell short stories and answer simple questions."),
    ("{hello|hi|good morning|good day}!", "hello! shall i tell you a story?"),
    ("how are you?", "i am well, thank you. shall i tell you a story?"),
    ("{thank you|thanks}!", "you are welcome."),
    ("{goodbye|good night}!", "goodbye! come back for another story."),
]
TRADES = [("baker", "bakes bread"), ("smith", "works with iron"), ("teacher", "teaches children"), ("farmer", "grows food"), ("doctor", "helps sick people"),
          ("gardener", "takes care of plants"), ("tailor", "sews clothes"), ("miller", "turns grain into flour"), ("sailor", "works on a ship"),
          ("shepherd", "looks after sheep"), ("carpenter", "makes things of wood"), ("cook", "prepares meals"), ("postman", "brings letters"),
          ("fisherman", "catches fish"), ("mason", "builds walls of stone"), ("painter", "paints pictures")]
SOUNDS = [("dog", "barks"), ("cat", "meows"), ("cow", "moos"), ("sheep", "bleats"), ("horse", "neighs"), ("duck", "quacks"), ("owl", "hoots"),
          ("frog", "croaks"), ("bee", "buzzes"), ("wolf", "howls"), ("lion", "roars"), ("crow", "caws"), ("pig", "grunts"), ("mouse", "squeaks")]
LIVES = [("fish", "in the water"), ("bird", "in a nest"), ("bee", "in a hive"), ("fox", "in a den"), ("rabbit", "in a burrow"), ("spider", "in a web"),
         ("bear", "in a cave"), ("horse", "in a stable"), ("mole", "under the ground"), ("squirrel", "in a tree")]
COLOURS = [("the sky", "blue"), ("grass", "green"), ("snow", "white"), ("coal", "black"), ("a lemon", "yellow"), ("blood", "red"), ("an orange", "orange"),
           ("chocolate", "brown"), ("the sun", "yellow"), ("a ripe strawberry", "red"), ("milk", "white"), ("a leaf", "green"), ("the night", "black"), ("a plum", "purple")]
OPPOSITES = [("hot", "cold"), ("big", "small"), ("day", "night"), ("fast", "slow"), ("old", "young"), ("happy", "sad"), ("up", "down"), ("wet", "dry"),
             ("hard", "soft"), ("light", "dark"), ("full", "empty"), ("rich", "poor"), ("near", "far"), ("loud", "quiet"), ("early", "late"), ("open", "closed")]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
USES = [("a key", "open a door"), ("a lantern", "see in the dark"), ("an umbrella", "stay dry in the rain"), ("a knife", "cut bread"), ("a boat", "cross the river"),
        ("a needle", "sew"), ("a broom", "sweep the floor"), ("a clock", "know the time"), ("a bell", "call people"), ("a ladder", "climb up"), ("a map", "find the way"),
        ("a pot", "cook soup"), ("a pen", "write a letter"), ("a bed", "sleep")]
SEASON_FACTS = [("spring", "the flowers begin to grow"), ("summer", "the days are long and warm"), ("autumn", "the leaves fall from the trees"), ("winter", "it is cold and it snows")]
WHY = [("why do we sleep?", "we sleep because our bodies need rest."), ("why do birds have wings?", "birds have wings so that they can fly."),
       ("why do we wear coats?", "we wear coats because they keep us warm."), ("why do plants need water?", "plants need water so that they can grow."),
       ("why is it dark at night?", "it is dark at night because the sun has gone down."), ("why do we eat?", "we eat because food gives us strength."),
       ("why does it rain?", "it rains because the clouds are full of water."), ("why do friends help each other?", "friends help each other because nobody can do everything alone."),
       ("why is ice cold?", "ice is cold because it is frozen water."), ("why do bees fly to flowers?", "bees fly to flowers because they look for honey.")]
