"""What passages state of organisations and places: the patterns, and the phrases to ask and tell it in."""

from turnwise.envs.qa.writer.statements import COUNT, PLACE, YEAR, Statement
from turnwise.envs.qa.writer.topics import Topic

_BODIES = (
    "company",
    "channel",
    "magazine",
    "organisation",
    "school",
    "university",
    "team",
    "league",
    "party",
    "festival",
)
_SITES = (
    "building",
    "stadium",
    "airport",
    "station",
    "park",
    "school",
    "university",
    "company",
    "organisation",
    "magazine",
    "channel",
    "team",
)
_US_STATES = (
    "Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware|Florida|Georgia|Hawaii|Idaho|Illinois|"
    "Indiana|Iowa|Kansas|Kentucky|Louisiana|Maine|Maryland|Massachusetts|Michigan|Minnesota|Mississippi|Missouri|"
    "Montana|Nebraska|Nevada|New Hampshire|New Jersey|New Mexico|New York|North Carolina|North Dakota|Ohio|Oklahoma|"
    "Oregon|Pennsylvania|Rhode Island|South Carolina|South Dakota|Tennessee|Texas|Utah|Vermont|Virginia|West Virginia|"
    "Washington|Wisconsin|Wyoming|New South Wales|Victoria|Queensland|South Australia|Western Australia|Tasmania|"
    "Ontario|Quebec|British Columbia|Alberta|Manitoba|Saskatchewan|Nova Scotia"
)


def _country(topic: Topic) -> tuple[str, ...]:
    country = topic.facts.country
    return () if country in (None, "Georgia") else (str(country),)


BODIES = (
    Statement(
        name="founding year",
        of=(*_BODIES, "building"),
        tell="{} was founded in {}.",
        value=YEAR,
        before=r"(?:founded|established|formed|started|launched|created|incorporated|organized|chartered|opened|begun)"
        r"(?: (?:by|in|as) [A-Z][^;.]{2,40}?)?,? in (?:[A-Z][a-z]+ |the [a-z]+ of )?(?:\d{1,2},? )?",
        ask=("In what year was {} founded?", "What year was {} founded?", "When was {} established?"),
        relative=("founded in what year?", "that was founded in what year?", "established in what year?"),
        described="founded in {}",
    ),
    Statement(
        name="founder",
        of=_BODIES,
        tell="{} was founded by {}.",
        to=("person",),
        before=r"(?:founded|established|created|started|launched)(?: in \d{4})? by (?:the )?(?:[a-z]+(?: [a-z]+)* )?",
        ask=("Who founded {}?", "Who is the founder of {}?"),
        relative=("founded by whom?", "founded by who?"),
        described="founded by {}",
        refer=("the founder of {}", "the person who founded {}"),
        clause="founded by",
        active="founded {}",
    ),
    Statement(
        name="headquarters",
        of=("company", "channel", "organisation", "magazine", "league"),
        tell="{} is based in {}.",
        before=r"(?:based|headquartered|headquarters (?:are|is)(?: located)?) in(?: downtown| suburban)? "
        r"(?!the )",
        value=PLACE,
        place=True,
        ask=("Where is {} based?", "Where is {} headquartered?", "In what city is {} headquartered?"),
        relative=("based where?", "headquartered in what city?"),
        described="based in {}",
        to=("settlement",),
        refer=("the # where {} is based", "the # where {} has its headquarters"),
        clause="based in",
    ),
    Statement(
        name="owner",
        of=("company", "channel", "magazine", "building", "stadium", "airport", "team", "station"),
        before=r"(?:owned(?: and (?:operated|published|managed|run))? by(?! the family)|subsidiary of|division of|"
        r"imprint of|brand of|arm of) (?:the )?(?:[a-z]+ )*",
        to=("company", "organisation", "university", "person", "channel"),
        tell="{} is owned by {}.",
        ask=("Who owns {}?", "What company owns {}?"),
        relative=("owned by whom?", "owned by what company?"),
        described="owned by {}",
        refer=("the owner of {}", "the # that owns {}"),
        clause="owned by",
        active="owns {}",
    ),
    Statement(
        name="home ground",
        of=("team",),
        tell="{} plays at {}.",
        before=r"(?:plays?|played) (?:most of |all )?(?:its|their|his)?(?: [a-z]+)? ?(?:home )?(?:games|matches|"
        r"ground|fixtures)? ?(?:at|in) (?:the )?",
        to=("stadium", "building"),
        ask=("Where does {} play its home games?",),
        relative=("that plays its home games where?",),
        refer=("the # where {} plays", "the home ground of {}"),
        clause="that plays at",
    ),
)

PLACES = (
    Statement(
        name="location",
        of=_SITES,
        tell="{} is in {}.",
        place=True,
        value=PLACE,
        before=r"(?:(?:located|situated|based|headquartered) )?(?:in|at)(?: downtown| central| suburban| (?:the )?"
        r"(?:[a-z]+ )*(?:city|town|village|suburb|borough|community|neighborhood|district|municipality) of)? (?!the )",
        ask=("Where is {} located?", "In what city is {} located?"),
        relative=("located where?",),
        described="in {}",
        to=("settlement", "region"),
        refer=("the # where {} is located", "the # in which {} is situated"),
        clause="in",
    ),
    Statement(
        name="county",
        of=("settlement", "school", "airport", "park", "building", "river", "university", "mountain", "lake", "road"),
        tell="{} is in {}.",
        only=False,
        value=r"(?:St\. )?[A-Z][\w'-]+(?: [A-Z][\w'-]+)? (?:County|Parish)|County [A-Z]\w+",
        before=r"(?:in|of)(?: (?:the )?(?:[\w' ]+ of|(?:north|south|east|west|central)[a-z]*))?(?: [A-Z][\w'. -]+,)? ",
        ask=("In what county is {} located?", "What county is {} in?", "Which county is {} located in?"),
        relative=("located in what county?", "in what county?"),
        described="in {}",
        to=("region",),
        refer=("the county where {} is located", "the county of {}"),
        clause="in",
    ),
    Statement(
        name="state",
        of=(
            "settlement",
            "school",
            "airport",
            "park",
            "building",
            "river",
            "university",
            "stadium",
            "mountain",
            "region",
            "lake",
            "station",
            "road",
        ),
        tell="{} is in {}.",
        value=_US_STATES,
        only=False,
        before=r"(?:in|of)(?: (?:the )?(?:[\w' ]+ of|(?:north|south|east|west|central)[a-z]*))?(?: [A-Z][\w'. "
        r"-]+,)* (?:the )?(?:state of |province of )?(?:U\.S\. state of )?",
        ask=("In what state is {} located?", "What state is {} in?"),
        relative=("located in what state?", "in which state?"),
        to=("region",),
        refer=("the state where {} is located", "the state of {}"),
        clause="in",
    ),
    Statement(
        name="country",
        of=("settlement", "school", "river", "university", "mountain", "island", "region"),
        read=_country,
        tell="{} is in {}.",
        ask=("In what country is {} located?", "What country is {} in?"),
        relative=("in what country?",),
        to=("region",),
        refer=("the country where {} is located",),
        clause="in",
    ),
    Statement(
        name="population",
        of=("settlement", "region", "island"),
        tell="The population of {} is {}.",
        value=COUNT,
        whole=True,
        only=False,
        before=r"population(?: of the [a-z]+| of [A-Z]\w+)?,?(?: (?:was|is|of|stood at|at|estimated|about|"
        r"approximately|around|over|roughly|an|recorded|as|the|in|[12]\d{3}|census|[Uu]\.?[Ss]\.?))* ",
        ask=("What is the population of {}?", "How many people live in {}?", "What was the population of {}?"),
        relative=("with what population?", "that has what population?"),
    ),
)
