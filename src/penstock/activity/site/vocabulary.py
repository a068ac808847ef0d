"""The texts of the site: search keywords, posts, endpoints, log messages.

No text needs escaping in JSON, so encoders may put it between quotes as it is.
"""

from __future__ import annotations

from typing import Final

REFERRERS: Final = ("list", "search", "direct", "external")
FROM_LIST, FROM_SEARCH, DIRECT, EXTERNAL = range(4)
SHOWN: Final = ("impression", "click")
IMPRESSION, CLICK = range(2)
FOLLOWING: Final = ("follow", "unfollow")
FOLLOW, UNFOLLOW = range(2)
GROUPS: Final = ("new", "regular", "professional")
GROUP_SHARES: Final = (0.2, 0.65, 0.15)
LEVELS: Final = ("INFO", "WARN", "ERROR")
INFO, WARN, ERROR = range(3)

ENDPOINTS: Final = (
    "/api/items", "/api/search", "/api/members", "/api/items/votes", "/api/feed", "/api/posts", "/api/follows",
    "/api/token", "/api/items/related", "/api/export", "/api/stats", "/api/webhooks",
)  # fmt: skip
PATHS: Final = (
    "/item", "/list", "/search", "/feed", "/", "/api", "/member", "/vote", "/post", "/login", "/static/app.js",
    "/static/site.css", "/follow", "/settings", "/about", "/export",
)  # fmt: skip
MESSAGES: Final = (
    "served", "served from the cache", "slow query", "no such page", "upstream timed out",
    "database: too many connections",
)  # fmt: skip
SERVED, SERVED_CACHED, SLOW_QUERY, NO_SUCH_PAGE, TIMED_OUT, NO_CONNECTION = range(6)

_ATTRIBUTES: Final = (
    "used", "small", "large", "red", "blue", "wooden", "electric", "cheap", "vintage", "portable", "folding", "quiet",
    "heavy", "solar", "organic", "local", "handmade", "wireless", "digital", "modern", "classic", "outdoor", "indoor",
    "fast", "light", "strong", "simple", "rare", "smart", "warm", "cold", "dry", "new", "best", "free", "green",
    "early", "late", "open", "hidden",
)  # fmt: skip
_THINGS: Final = (
    "bicycle", "guitar", "lamp", "desk", "camera", "kettle", "tent", "boots", "jacket", "keyboard", "radio", "sofa",
    "garden", "recipe", "novel", "map", "ticket", "course", "job", "flat", "garage", "boat", "clock", "mirror", "oven",
    "drill", "saw", "piano", "violin", "telescope", "printer", "phone", "watch", "helmet", "backpack", "bench", "fence",
    "pump", "heater", "fan", "bottle", "puzzle", "chess set", "carpet", "ladder", "scooter", "trailer", "stove",
    "canoe", "cabin",
)  # fmt: skip
KEYWORDS: Final = tuple(f"{attribute} {thing}" for thing in _THINGS for attribute in _ATTRIBUTES)

_OPENINGS: Final = (
    "After a month with", "My neighbour asked me about", "I finally tried", "Not sure what to think of", "A word on",
    "Two years later, still happy with", "I gave up on", "Repaired on Sunday:", "For beginners I recommend",
    "Nobody talks about", "Found at a flea market:", "The good and the bad of", "Before you buy, look at",
    "We compared three kinds of", "Half price today:", "My father built", "An honest view of", "Seen in the city:",
    "A question about", "Thank you all for the advice on",
)  # fmt: skip
_OPINIONS: Final = (
    "it does what it should", "the instructions are wrong", "the second one was better", "it broke on the first day",
    "the colour is not as shown", "I would buy it again", "it needs more room than I thought", "my children love it",
    "the price is fair", "it smells a little", "spare parts are hard to find", "it arrived in three days",
    "the handle came off", "it is louder than the old one", "nothing beats it in winter", "you need two people for it",
    "the manual is a joy to read", "it fits into the boot of a small car", "I painted it", "the seller was friendly",
    "it lasted longer than its guarantee", "take the larger one", "there are better ones for less", "I have no regrets",
    "it took all afternoon", "the battery is the weak point",
)  # fmt: skip
_REMARKS: Final = (
    "Ask me anything.", "More next week.", "Pictures follow.", "Opinions?", "Your experience may differ.",
    "I am not paid for this.", "Greetings from the coast.", "It rains here, so I had time.",
    "Has anyone else seen this?", "That is all.", "I will report again in spring.", "Be careful with the screws.",
    "Measure twice.", "Do not hurry.", "Worth the wait.", "Sold already.", "Still looking for one.", "Cheers.",
)  # fmt: skip
_CAMPAIGNS: Final = (
    ("Earn 900 a day from home with Golden River, join now", "golden-river.example/join"),
    ("Cheap pills without a receipt, shipped today", "pill-market.example/offer"),
    ("You have won a phone, claim it before midnight", "winner-today.example/claim"),
    ("Lonely? Meet people near you tonight, no fee", "meet-tonight.example/go"),
    ("Double your coins in one hour, proven system", "coin-doubler.example/start"),
)  # fmt: skip
TEXTS: Final = len(_OPENINGS) * len(_OPINIONS) * len(_OPINIONS) * len(_REMARKS)


def honest_text(keyword: int, number: int, linked: bool) -> str:
    """One of some 240,000 ways to speak of something; `number` says which."""
    number, opening = divmod(number, len(_OPENINGS))
    number, first = divmod(number, len(_OPINIONS))
    number, second = divmod(number, len(_OPINIONS))
    remark = _REMARKS[number % len(_REMARKS)]
    link = f" https://site.example/item/{keyword + 1}" if linked else ""
    return f"{_OPENINGS[opening]} {KEYWORDS[keyword]}: {_OPINIONS[first]}, {_OPINIONS[second]}. {remark}{link}"


def spam_text(campaign: int, number: int) -> str:
    """A campaign's text; only what follows its link differs."""
    text, link = _CAMPAIGNS[campaign % len(_CAMPAIGNS)]
    return f"{text}: https://{link}?ref={number}"
