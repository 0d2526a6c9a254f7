"""The small world that tiny-chat knows: word lists and fact tables, nothing else. All written for this project."""

COLOURS = "red blue green yellow orange purple pink brown black white grey".split()
PRIMARY = ["Red", "Blue", "Yellow"]
MIXES = {("red", "yellow"): "orange", ("blue", "yellow"): "green", ("red", "blue"): "purple", ("black", "white"): "grey", ("red", "white"): "pink"}
COLOUR_OF = {
    "the sky": "blue", "grass": "green", "snow": "white", "coal": "black", "a banana": "yellow", "a lemon": "yellow", "blood": "red",
    "a tomato": "red", "chocolate": "brown", "milk": "white", "the sun": "yellow", "a carrot": "orange", "a leaf": "green", "an elephant": "grey",
    "a flamingo": "pink", "a raven": "black", "the sea": "blue", "a cherry": "red", "an orange": "orange", "a pea": "green", "a fire truck": "red",
    "a plum": "purple", "a polar bear": "white", "a frog": "green", "a strawberry": "red", "salt": "white", "a pumpkin": "orange", "night": "black",
}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = dict(zip(MONTHS, [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]))
SEASONS = ["Spring", "Summer", "Autumn", "Winter"]
CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon", "England": "London", "Ireland": "Dublin",
    "Scotland": "Edinburgh", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Poland": "Warsaw",
    "Austria": "Vienna", "Greece": "Athens", "Hungary": "Budapest", "Belgium": "Brussels", "Russia": "Moscow", "Ukraine": "Kyiv", "Turkey": "Ankara",
    "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Indonesia": "Jakarta", "Egypt": "Cairo",
    "Kenya": "Nairobi", "Nigeria": "Abuja", "Morocco": "Rabat", "Ghana": "Accra", "Canada": "Ottawa", "Mexico": "Mexico City", "Brazil": "Brasilia",
    "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima", "Cuba": "Havana", "Colombia": "Bogota", "Australia": "Canberra",
    "New Zealand": "Wellington", "Iceland": "Reykjavik", "Switzerland": "Bern", "the Netherlands": "Amsterdam", "Romania": "Bucharest",
    "Bulgaria": "Sofia", "Croatia": "Zagreb", "Serbia": "Belgrade", "the Philippines": "Manila", "South Korea": "Seoul",
}
OPPOSITES = [tuple(p.split("/")) for p in (
    "hot/cold big/small up/down left/right day/night black/white fast/slow old/new open/closed happy/sad good/bad high/low wet/dry full/empty "
    "light/dark hard/soft loud/quiet rich/poor strong/weak tall/short thick/thin near/far early/late clean/dirty easy/difficult first/last "
    "in/out on/off push/pull win/lose buy/sell love/hate true/false wide/narrow deep/shallow sweet/sour young/elderly begin/end "
    "give/take question/answer heavy/lightweight inside/outside before/after above/below always/never more/less yes/no rough/smooth"
).split()]
PLURALS = {
    "cat": "cats", "dog": "dogs", "house": "houses", "tree": "trees", "book": "books", "car": "cars", "bird": "birds", "apple": "apples", "bus": "buses",
    "box": "boxes", "fox": "foxes", "dish": "dishes", "watch": "watches", "church": "churches", "glass": "glasses", "city": "cities", "baby": "babies",
    "story": "stories", "lady": "ladies", "fly": "flies", "toy": "toys", "key": "keys", "day": "days", "leaf": "leaves", "wolf": "wolves", "knife": "knives",
    "life": "lives", "wife": "wives", "shelf": "shelves", "man": "men", "woman": "women", "child": "children", "mouse": "mice", "goose": "geese",
    "foot": "feet", "tooth": "teeth", "person": "people", "ox": "oxen", "sheep": "sheep", "fish": "fish", "deer": "deer", "potato": "potatoes",
    "tomato": "tomatoes", "hero": "heroes", "table": "tables", "chair": "chairs", "window": "windows", "river": "rivers", "flower": "flowers", "star": "stars",
}
SOUNDS = {
    "dog": "barks", "cat": "meows", "cow": "moos", "sheep": "bleats", "duck": "quacks", "horse": "neighs", "lion": "roars", "pig": "oinks", "frog": "croaks",
    "bee": "buzzes", "owl": "hoots", "snake": "hisses", "wolf": "howls", "mouse": "squeaks", "rooster": "crows", "donkey": "brays", "bird": "sings",
    "hen": "clucks", "goat": "bleats", "crow": "caws",
}
BABIES = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "sheep": "lamb", "duck": "duckling", "horse": "foal", "lion": "cub", "pig": "piglet", "frog": "tadpole",
    "hen": "chick", "goat": "kid", "bear": "cub", "goose": "gosling", "kangaroo": "joey", "deer": "fawn", "owl": "owlet",
}
LEGS = {"dog": 4, "cat": 4, "bird": 2, "spider": 8, "ant": 6, "horse": 4, "cow": 4, "duck": 2, "bee": 6, "fish": 0, "snake": 0, "hen": 2, "fly": 6, "pig": 4}
KINDS = {
    "animal": "dog cat horse cow sheep lion tiger bear wolf fox frog mouse rabbit elephant".split(),
    "fruit": "apple banana cherry lemon grape pear plum peach mango".split(),
    "vegetable": "carrot potato onion cabbage pea bean spinach".split(),
    "vehicle": "car bus train bicycle truck boat plane".split(),
    "tool": "hammer saw drill shovel wrench axe".split(),
    "instrument": "piano violin guitar drum flute trumpet".split(),
    "colour": "red blue green yellow purple pink".split(),
    "flower": "rose tulip daisy lily violet".split(),
    "piece of furniture": "table chair bed sofa desk shelf".split(),
}
NAMES = "Anna Ben Clara David Emma Felix Grace Henry Ivy Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tom Una Vera Will Zoe Alice Bob Maria Peter Lucy Max Nina".split()
CITIES = ["Paris", "London", "Rome", "Berlin", "Madrid", "Oslo", "Tokyo", "Cairo", "Lima", "Vienna", "Dublin", "Athens"]
WORDS = sorted(set(
    "apple river stone cloud bread house garden window music paper silver winter summer candle bridge castle forest island mountain ocean planet rocket "
    "school street table train water yellow zebra tiger lion horse mouse rabbit monkey flower grass tree leaf root seed branch bird fish frog snake spider "
    "door floor wall roof chair lamp clock bottle cup plate spoon fork knife shirt shoe hat coat glove sock ring coin key lock book pen pencil letter "
    "story song dance game ball kite drum piano violin guitar king queen prince knight farmer baker doctor teacher sailor pilot driver painter writer "
    "sugar salt pepper butter cheese honey lemon orange banana cherry grape peach plum onion carrot potato bean rice soup cake pie milk tea coffee juice "
    "hello world happy sad quick slow bright dark cold warm soft hard light heavy clean fresh quiet loud small large green blue red black white brown pink "
    "sun moon star sky rain snow wind storm fire ice sand hill lake beach road path field farm barn ship boat car bus bike plane wheel engine "
    "cat dog cow pig hen duck goose goat sheep wolf fox bear deer owl crow bee ant fly moth north south east west left right up down day night week month "
    "year hour minute morning evening spring autumn weir model server token stream cache queue worker number word list line page".split()))
ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def number_word(n: int) -> str:
    """0..100 in words."""
    if n == 100:
        return "one hundred"
    if n < 20:
        return ONES[n]
    return TENS[n // 10] + ("" if n % 10 == 0 else "-" + ONES[n % 10])


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun
