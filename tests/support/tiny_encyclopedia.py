"""Ten encyclopedic passages with facts that templates can ask about."""

from turnwise.tools.search.retrieval import Passage

TEXTS = {
    "Paris Nights (film)": "Paris Nights is a 1937 French drama film directed by Abel Gance. It stars Harry Baur.",
    "The Lamp": "The Lamp( German: Die Lampe) is a 1955 West German film directed by Robert A. Stemmle and starring E.",
    "Two Roads": "Two Roads is a 1961 British film directed by Anna Bell and Tom Hill.",
    "Abel Gance": "Abel Gance (25 October 1889 – 10 November 1981) was a French film director. He was born in Paris.",
    "Robert A. Stemmle": "Robert Adolf Stemmle (10 June 1903, Magdeburg – 24 February 1974, Baden-Baden) was a German "
    "writer. He was the son of Otto Stemmle and his wife Clara Winter.",
    "Otto Stemmle": "Otto Stemmle (1870 – 3 May 1941) was a German judge. He was the eldest son of Karl Stemmle and "
    "Ida Roth.",
    "Joined Up": "Joined Up (October 16, 1912October 20, 2009) was an American politician from the state of Wyoming.",
    "Shaneh": "Shaneh is a village in Karipey Rural District, Babol County, Mazandaran Province, Iran.",
    "Belprahon": "Belprahon is a municipality in the Jura bernois district in the canton of Bern in Switzerland.",
    "Weabonga": "Weabonga is a village in New South Wales, Australia.",
}
CORPUS = [Passage(id=f"p{place}", title=title, text=text) for place, (title, text) in enumerate(TEXTS.items())]
