"""Plain English prose without end and without repetition, from a seed.

Repeated text would flatter drafters that look for n-grams, and random tokens would ruin their
acceptance; a public text could already sit in a server's cache, or in its training data word for
word. So sentences are made from templates and word lists, no sentence twice.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

_LISTS = {
    "person": """the ferryman|the schoolteacher|a retired surveyor|the night clerk|her eldest cousin
        |the harbour pilot|a travelling printer|the beekeeper|the county engineer|an apprentice baker
        |the widow upstairs|a young botanist|the station master|his former neighbour|the archivist
        |a patient joiner|the choir director|the lock keeper|an elderly gardener|the visiting nurse
        |the mapmaker|a quiet accountant|the miller's daughter|the village doctor|a tram conductor
        |the glassblower|an amateur astronomer|the head cook|a junior magistrate|the bookbinder
        |the dyer's brother|a weary courier|the lighthouse crew|the piano tuner|a cautious banker
        |the deputy mayor|an orchard owner|the weather observer|a stonecutter|the ship's carpenter
        |the new librarian|a market trader|the bell founder|a student of law|the cheese merchant
        |the postal inspector|a basket weaver|the forester|our landlady|the clock repairer""",
    "name": """Marta|Edwin|Liesel|Tobias|Agnes|Ruben|Clara|Henrik|Ottilie|Samuel|Ingrid|Pascal|Nora
        |Gideon|Beatrix|Anselm|Judith|Casper|Hanna|Leopold|Mirjam|Felix|Greta|Matthias|Sophie|Jonas
        |Wilma|Ambrose|Irena|Lucas|Paula|Benedikt|Rosalind|Theo|Adele|Viktor|Elspeth|Conrad|Maud
        |Julian|Petra|Silas|Edith|Roland|Tamsin|Harold|Yvette|Oskar|Winifred|Duncan""",
    "place": """the old harbour|the lower meadow|the brick warehouse|the northern pass|the tiled kitchen
        |the salt works|the county hall|the walled orchard|the timber yard|the second platform
        |the chapel garden|the river bend|the covered market|the observatory|the narrow courtyard
        |the town archive|the weaving shed|the mill pond|the upper quarry|the customs house
        |the village green|the reading room|the drained marsh|the hillside farm|the rope walk
        |the signal box|the cold cellar|the ferry landing|the municipal baths|the copper foundry
        |the east gallery|the old tannery|the schoolyard|the stone bridge|the greenhouse
        |the boat shed|the printing works|the shepherd's hut|the grain store|the ruined abbey""",
    "thing": """ledger|lantern|barrel|compass|loom|telescope|letter|bridge plan|kettle|clock|ladder|map
        |harvest report|violin|window frame|sack of flour|copper pipe|weather chart|rowing boat|atlas
        |seed catalogue|cart wheel|bellows|winter coat|wooden chest|photograph|ration book|paintbrush
        |milk churn|saddle|printing plate|signal lamp|fishing net|pocket diary|stove|mirror|anvil
        |inkwell|spade|hymn book|quilt|barometer|key ring|toolbox|tea service|oak table|roof beam
        |pulley|notebook|candlestick|umbrella|water pump|brass bell|train ticket|sketch|cider press""",
    "adj": """narrow|faded|heavy|borrowed|unfinished|careful|crooked|modest|polished|damp|ordinary|silent
        |remarkable|stubborn|wooden|pale|hurried|foreign|generous|uneven|reliable|delicate|battered
        |early|distant|plain|curious|sturdy|expensive|abandoned|gentle|awkward|spare|precise|dusty
        |handsome|temporary|familiar|shallow|bright|clumsy|patient|rusty|obscure|cheerful|rigid
        |worn|spacious|doubtful|fragile|green|muddy|official|private|sober|tidy|vast|weathered""",
    "stuff": """rain|timber|patience|money|daylight|gossip|coal|paper|bread|silence|courage|linen|salt
        |advice|lamp oil|snow|iron|wool|time|fresh water|experience|credit|straw|curiosity|music
        |gravel|wine|trust|honey|smoke|canvas|good weather|barley|glue|sympathy|clay|leather|rope
        |tobacco|sleep|butter|practice|copper|hay|ink|caution""",
    "act": """measured|repaired|sold|described|carried away|painted|hid|examined|lent out|weighed|forgot
        |rebuilt|catalogued|cleaned|inherited|traded|photographed|sketched|dismantled|guarded
        |returned|ordered|polished|copied|rescued|mislaid|insured|unpacked|replaced|borrowed
        |inspected|delivered|labelled|buried|auctioned|mended|praised|refused|studied|wrapped""",
    "mind": """believed|remembered|denied|suspected|explained|noticed|insisted|admitted|hoped|doubted
        |argued|discovered|feared|complained|guessed|understood|claimed|predicted|mentioned|wrote
        |assumed|confessed|heard|concluded|pretended|repeated|announced|warned""",
    "go": """walked past|hurried towards|returned to|waited near|lived behind|worked in|stopped at
        |looked down on|set out from|cycled to|was seen leaving|slept above|sheltered in|met at
        |drove around|wandered through|kept away from|climbed up to|rented rooms near|settled beside""",
    "when": """before dawn|after the flood|during the strike|late in autumn|at the end of the week
        |on market day|in the first winter|soon after lunch|by candlelight|on a windless morning
        |between two storms|at low tide|that same evening|when the bells rang|early in spring
        |a month later|on the longest day|in a dry summer|while the kettle boiled|at harvest time
        |around midnight|the following Tuesday|once the snow melted|for most of June""",
    "how": """without much ceremony|with surprising ease|against all advice|for a fair price
        |in complete silence|with borrowed tools|rather slowly|almost by accident|to everyone's relief
        |with a steady hand|out of habit|under protest|in good humour|at great expense|step by step
        |with little hope|as a favour|in plain view|twice over|by mistake|for no clear reason
        |with some pride|despite the cold|behind closed doors|in a single afternoon""",
    "state": """was cracked|had gone missing|needed oil|smelled of smoke|was worth keeping|looked brand new
        |stood empty|had been locked|turned out useless|cost too much|was only a copy|belonged elsewhere
        |had changed hands|hung by a thread|was upside down|could not be moved|lay in pieces
        |had lost its colour|was overdue|ran perfectly|weighed almost nothing|was under water
        |had no owner|was made abroad|held together well|would not open""",
    "topic": """drainage|navigation|bookkeeping|glass making|local history|crop rotation|astronomy|carpentry
        |bell ringing|public health|railway signals|beekeeping|cartography|weaving|inheritance law
        |cheese making|tide tables|grammar|bridge building|bird migration|tax collection|pottery
        |meteorology|shipbuilding|folk songs|mining|forestry|printing|irrigation|clockwork""",
    "number": """two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fourteen|fifteen|sixteen
        |eighteen|twenty|thirty|forty|fifty|sixty|ninety|a hundred|several dozen|half a dozen""",
    "link": """because|although|since|even though|so that nobody asked why|until|whereas|while
        |long before|as soon as|unless of course|just when|in case|now that""",
}

_TEMPLATES = """
{name} {act} the {adj} {thing} {when}, {link} {person} {go} {place}.
{when}, {person} {mind} that the {thing} near {place} {state}.
There was {stuff} enough for {number} {adj} winters, or so {name} {mind}.
{person} and {name} {go} {place} {when}, talking of {topic} and {stuff}.
Nobody at {place} {mind} that {name}, {person}, had ever {act} a {adj} {thing}.
A {adj} {thing} {state}, and {person} {act} it {how}.
In {year}, {number} people {go} {place}; only {name} {mind} why.
"The {thing} {state}," said {name}, "{link} {person} {act} the {adj} one."
{how}, {name} {act} {number} pages on {topic} and a {adj} {thing}.
What {person} {mind} about {topic} {when} was mostly {adj} talk over {stuff}.
{link} {stuff} ran short in {year}, {person} {act} every {thing} from {place}.
The {thing} that {name} {act} {how} {state} {when}.
{person} {go} {place}, {act} the {thing}, and {mind} that {topic} was a {adj} trade.
Of the {number} letters about {topic}, {name} {act} only the {adj} ones {when}.
{place} had {stuff}, {stuff} and a {adj} {thing}, yet {person} {go} {place} {how}.
{when}, a {adj} crowd {go} {place}, {link} {name} {act} {person}'s {thing}.
{name} asked for {stuff}; {person} {act} a {thing} instead, {how}.
Some {mind} in {year} that {topic} needs more {stuff} than {topic} does.
{number} times {when} {person} {act} the same {thing}, and {number} times it {state}.
Was it {name} who {act} the {adj} {thing}, or {person}, {how}?
{place} is {adj}, {adj} and full of {stuff}, as {name} {mind} {when}.
Her notes on {topic} ({year}) {mind} little of {stuff}, less of {person}.
{person} {mind} {how} that {number} {adj} days at {place} teach more than {topic}.
The price of {stuff} rose {when}; the {thing} {state}, and {name} {go} {place}.
{name}, {link} the {thing} {state}, {act} {stuff} for {person} {how}.
"""

_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")
_PARAGRAPH_SENTENCES = 6


def sentences(seed: str) -> Iterator[str]:
    """Yield sentences of plain prose for ever; none comes twice, and each seed has its own.

    The same seed gives the same text on any version of Python: only `random()` is drawn from, which
    Python promises to keep.
    """
    draw = random.Random(seed).random
    lists = {name: [w.strip() for w in words.split("|")] for name, words in _LISTS.items()}
    templates = _TEMPLATES.strip().splitlines()
    seen: set[str] = set()

    def pick(match: re.Match[str]) -> str:
        if match[1] == "year":
            return str(1700 + int(draw() * 250))
        words = lists[match[1]]
        return words[int(draw() * len(words))]

    while True:
        line = _SLOT.sub(pick, templates[int(draw() * len(templates))])
        line = _ARTICLE.sub(r"\1n ", line[0].upper() + line[1:])
        if line not in seen:
            seen.add(line)
            yield line


def words(seed: str) -> Iterator[str]:
    """Yield the words of `sentences(seed)`, each with the space or paragraph break before it."""
    for number, sentence in enumerate(sentences(seed)):
        for position, word in enumerate(sentence.split(" ")):
            starts = position == 0 and number and number % _PARAGRAPH_SENTENCES == 0
            yield ("\n\n" if starts else " ") + word
