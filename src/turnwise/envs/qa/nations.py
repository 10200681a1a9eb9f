"""The words for nations, and the countries that they are of.

Invariant: every nationality has one country; what is English or Scottish is of the United Kingdom.
"""

from collections.abc import Mapping

DEMONYMS: Mapping[str, str] = {
    "American": "United States", "British": "United Kingdom", "English": "United Kingdom", "Scottish": "United Kingdom",
    "Welsh": "United Kingdom", "French": "France", "German": "Germany", "West German": "Germany", "Italian": "Italy",
    "Spanish": "Spain", "Portuguese": "Portugal", "Dutch": "Netherlands", "Belgian": "Belgium", "Swiss": "Switzerland",
    "Austrian": "Austria", "Hungarian": "Hungary", "Polish": "Poland", "Czech": "Czech Republic", "Russian": "Russia",
    "Ukrainian": "Ukraine", "Swedish": "Sweden", "Norwegian": "Norway", "Danish": "Denmark", "Finnish": "Finland",
    "Icelandic": "Iceland", "Irish": "Ireland", "Greek": "Greece", "Turkish": "Turkey", "Romanian": "Romania",
    "Bulgarian": "Bulgaria", "Serbian": "Serbia", "Croatian": "Croatia", "Slovenian": "Slovenia", "Slovak": "Slovakia",
    "Estonian": "Estonia", "Latvian": "Latvia", "Lithuanian": "Lithuania", "Canadian": "Canada", "Mexican": "Mexico",
    "Brazilian": "Brazil", "Argentine": "Argentina", "Chilean": "Chile", "Peruvian": "Peru", "Colombian": "Colombia",
    "Venezuelan": "Venezuela", "Cuban": "Cuba", "Indian": "India", "Pakistani": "Pakistan", "Chinese": "China",
    "Bangladeshi": "Bangladesh", "Sri Lankan": "Sri Lanka", "Japanese": "Japan", "South Korean": "South Korea",
    "Filipino": "Philippines", "Thai": "Thailand", "Vietnamese": "Vietnam", "Indonesian": "Indonesia",
    "Malaysian": "Malaysia", "Iranian": "Iran", "Israeli": "Israel", "Egyptian": "Egypt", "Lebanese": "Lebanon",
    "Nigerian": "Nigeria", "South African": "South Africa", "Kenyan": "Kenya", "Australian": "Australia",
    "New Zealand": "New Zealand", "Hong Kong": "Hong Kong", "Taiwanese": "Taiwan", "Albanian": "Albania",
    "Armenian": "Armenia", "Georgian": "Georgia", "Jamaican": "Jamaica", "Uruguayan": "Uruguay", "Bolivian": "Bolivia",
    "Ecuadorian": "Ecuador", "Moroccan": "Morocco", "Tunisian": "Tunisia", "Algerian": "Algeria", "Ghanaian": "Ghana",
    "Singaporean": "Singapore", "Nepalese": "Nepal", "Kazakhstani": "Kazakhstan", "Paraguayan": "Paraguay",
}  # fmt: skip
"""The country of each nationality."""
DEMONYM = "|".join(sorted(DEMONYMS, key=len, reverse=True))
"""Any of them, in a regular expression."""
COUNTRIES = {
    *DEMONYMS.values(), "England", "Scotland", "Wales", "Northern Ireland", "Syria", "Iraq", "Afghanistan", "Yemen",
    "Madagascar", "Tanzania", "Uganda", "Ethiopia", "Mali", "Burkina Faso", "Benin", "Togo", "Cameroon", "Cyprus",
    "Malta", "Belarus", "Moldova", "Azerbaijan", "Bosnia and Herzegovina", "Kosovo", "Montenegro", "North Macedonia",
    "Luxembourg", "Oman", "Qatar", "Kuwait", "Jordan", "Saudi Arabia", "Myanmar", "Laos", "Cambodia", "Mongolia",
    "North Korea", "Sudan", "Somalia", "Angola", "Zambia", "Zimbabwe", "Mozambique", "Namibia", "Botswana", "Senegal",
    "Guinea", "Ivory Coast", "Honduras", "Guatemala", "El Salvador", "Nicaragua", "Costa Rica", "Panama", "Haiti",
    "Dominican Republic", "USA",
}  # fmt: skip
SAME_COUNTRY = {"England": "United Kingdom", "Scotland": "United Kingdom", "Wales": "United Kingdom",
                "Northern Ireland": "United Kingdom", "USA": "United States"}  # fmt: skip
