"""What passages state of organisations and places: the patterns, and the phrases to ask and tell it in."""

from turnwise.envs.qa.writer.statements import COUNT, NAME, PLACE, YEAR, Statement
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
_WATER = (
    rf"(?:River|Lake|Gulf of|Bay of) {NAME}|"
    r"(?:[A-Z][\w'.-]+ )+(?:River|Creek|Lake|Bay|Sea|Ocean|Gulf|Strait|Harbou?r|Sound|Fork|Brook)"
)
_WATERS = ("river", "lake")


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
        name="operator",
        of=("station", "airport", "building", "company", "ship", "park"),
        tell="{} is operated by {}.",
        before=r"(?:operated|run|managed|maintained|administered) by (?:the )?(?:[a-z]+ )*",
        to=("company", "organisation", "university"),
        ask=("Who operates {}?",),
        relative=("operated by whom?",),
        refer=("the operator of {}", "the # that operates {}"),
        clause="operated by",
        active="operates {}",
    ),
    Statement(
        name="represents",
        of=("team",),
        tell="{} represents {}.",
        before=r"(?:represents?|represented|represent|team of|teams? (?:for|at)) (?:the )?",
        to=("university", "school", "settlement"),
        refer=("the # represented by {}", "the # that {} represents"),
        clause="that represents",
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
    Statement(
        name="league",
        of=("team",),
        tell="{} plays in {}.",
        before=r"(?:compet(?:es?|ed|ing)|play(?:s|ed|ing)?|member|part|franchise|team) (?:[a-z]+ )?(?:in|of) (?:the )?"
        r"(?:\w+ (?:division|tier|level) of (?:the )?)?",
        value=r"(?:[A-Z][\w'-]+ )*(?:League|Conference|Liga|Premiership|Bundesliga|Championship|"
        r"Association)(?: (?:One|Two|[A-Z]\b|\d))?",
        ask=("What league does {} play in?",),
        relative=("that plays in which league?",),
        to=("league",),
        refer=("the league in which {} plays", "the # that {} plays in"),
        clause="that plays in",
    ),
    Statement(
        name="capacity",
        of=("stadium", "building"),
        tell="{} has {} seats.",
        value=COUNT,
        only=False,
        before=r"(?:capacity (?:of|is|was)(?: about| approximately| around| over| roughly)? |seats (?:about |"
        r"approximately |up to |over )?|holds (?:about |up to )?)",
        ask=("What is the capacity of {}?", "How many people can {} hold?"),
        relative=("that holds how many people?",),
    ),
    Statement(
        name="opening year",
        of=("stadium", "building", "airport", "station", "park", "road"),
        tell="{} opened in {}.",
        value=YEAR,
        before=r"(?:opened|built|completed|constructed|erected|inaugurated)(?: to the public)?,? (?:in|on) "
        r"(?:[A-Z][a-z]+ )?(?:\d{1,2},? )?(?:[A-Z][a-z]+,? )?",
        ask=("In what year did {} open?", "When was {} opened?"),
        relative=("opened in what year?",),
        described="opened in {}",
    ),
    Statement(
        name="students",
        of=("school", "university"),
        tell="{} has {} students.",
        value=COUNT,
        whole=True,
        only=False,
        before=r"(?:enrol(?:l)?(?:ment|s|ed)?(?: (?:of|is|was))?|serves|with|has) (?:about |approximately |over |"
        r"around |more than |some |nearly )?",
        ask=("How many students does {} have?",),
    ),
    Statement(
        name="mascot",
        of=("school", "university"),
        tell="The mascot of {} is {}.",
        whole=True,
        only=False,
        before=r"(?:mascot(?: is|,)|nickname is|teams are (?:known as|called|nicknamed)|known as) (?:the )?(?:a )?",
        value=r"(?:[A-Z][a-z]+ ?)+",
        ask=("What is the mascot of {}?",),
    ),
    Statement(
        name="namesake",
        of=(*_BODIES, *_SITES, "settlement", "region", "river", "genus", "mountain", "island", "ship", "lake"),
        tell="{} is named after {}.",
        to=("person",),
        before=r"named (?:after|for|in hono(?:u)?r of|in memory of) (?:the )?(?:[a-z]+(?:[ -][a-z]+)* )?"
        r"(?:Sir |Dr\. |President |Captain |General |Senator |Colonel )?",
        ask=("Who is {} named after?",),
        relative=("named after whom?",),
        described="named after {}",
        refer=("the person {} was named after", "the namesake of {}"),
        clause="named after",
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
    Statement(
        name="seat",
        of=("region",),
        tell="The seat of {} is {}.",
        whole=True,
        before=r"(?:county seat|[Ii]ts seat|[Ii]ts capital|capital city|administrative center|capital)(?: and "
        r"largest city)? is (?:the )?(?:city of |town of )?",
        ask=("What is the seat of {}?", "What is the capital of {}?"),
        to=("settlement",),
        refer=("the seat of {}",),
    ),
    Statement(
        name="mouth",
        of=_WATERS,
        tell="{} flows into {}.",
        to=("river", "lake"),
        value=_WATER,
        before=r"(?:^of|tributary of|flows? (?:[a-z]+ )*(?:in)?to|empties into|joins|drains into|discharges into|"
        r"flowing (?:[a-z]+ )?(?:in)?to|confluence with) (?:the )?",
        ask=("What does {} flow into?", "What body of water does {} flow into?"),
        relative=("that flows into what body of water?",),
        described="that flows into the {}",
        refer=("the # that {} flows into", "the # into which {} flows"),
        clause="that flows into",
    ),
    Statement(
        name="length",
        of=("river", "road"),
        tell="{} is {} long.",
        value=r"\d[\d.,]* ?(?:-)?(?:km|mi|miles|kilometers|kilometres|mile)\b",
        only=False,
        before=r"(?:is|length of|about|approximately|some|an|a|) ?(?:approximately |about )?",
        ask=("How long is {}?", "What is the length of {}?"),
        relative=("of what length?",),
    ),
    Statement(
        name="elevation",
        of=("mountain",),
        tell="{} is {} high.",
        value=r"\d[\d,.]* ?(?:-)?(?:m|ft|feet|metres|meters)\b",
        only=False,
        before=r"(?:elevation of|height of|at|rises to|summit of) (?:about |approximately )?",
        ask=("How high is {}?", "What is the elevation of {}?"),
    ),
    Statement(
        name="range",
        of=("mountain",),
        tell="{} is part of {}.",
        before=r"(?:of|in) (?:the )",
        value=r"(?:[A-Z][\w'-]+ )+(?:Range|Mountains|Alps|Hills)|(?:[A-Z][\w'-]+ )?Alps",
        ask=("What mountain range is {} part of?",),
        relative=("in what mountain range?",),
    ),
    Statement(
        name="family",
        of=("genus",),
        tell="{} is of the family {}.",
        value=r"[A-Z][a-z]+(?:idae|aceae|inae)\b",
        whole=True,
        before=r"",
        only=False,
        ask=("What family does {} belong to?", "{} is in what family?"),
        relative=("in what family?",),
        described="in the family {}",
        to=("genus",),
    ),
    Statement(
        name="genus",
        of=("genus",),
        tell="{} is of the genus {}.",
        before=r"(?:in|of) the genus ",
        value=r"[A-Z][a-z]+",
        ask=("What genus does {} belong to?",),
        to=("genus",),
        refer=("the genus of {}", "the genus that {} belongs to"),
        clause="in",
    ),
)
