"""Written English as it is said: numbers, money, dates, times, units, abbreviations, symbols, addresses become words. Knows no phonemes.

Every rule is a pattern and what is said for it, in an order that lets the larger pattern win: an address before its dots, a date before its numbers.
"""

import re
import unicodedata
from collections.abc import Callable

from mlxspec.audio.text.numbers import cardinal, decade, decimal, digits, ordinal, plural, year

MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")
MONTH = {name[:size].lower(): name for name in MONTHS for size in (3, len(name))} | {"sept": "September"}
UNITS = {  # one, many
    "km/h": ("kilometer per hour", "kilometers per hour"), "mph": ("mile per hour", "miles per hour"),
    "m/s": ("meter per second", "meters per second"),
    "km": ("kilometer", "kilometers"), "cm": ("centimeter", "centimeters"), "mm": ("millimeter", "millimeters"), "m": ("meter", "meters"),
    "kg": ("kilogram", "kilograms"), "mg": ("milligram", "milligrams"), "g": ("gram", "grams"), "lbs": ("pound", "pounds"), "lb": ("pound", "pounds"),
    "oz": ("ounce", "ounces"), "ft": ("foot", "feet"), "mi": ("mile", "miles"), "yd": ("yard", "yards"), "ml": ("milliliter", "milliliters"),
    "l": ("liter", "liters"), "ms": ("millisecond", "milliseconds"), "min": ("minute", "minutes"), "hrs": ("hour", "hours"), "hr": ("hour", "hours"),
    "h": ("hour", "hours"), "sec": ("second", "seconds"), "s": ("second", "seconds"), "khz": ("kilohertz", "kilohertz"), "hz": ("hertz", "hertz"),
    "mhz": ("megahertz", "megahertz"), "ghz": ("gigahertz", "gigahertz"), "kb": ("kilobyte", "kilobytes"), "mb": ("megabyte", "megabytes"),
    "gb": ("gigabyte", "gigabytes"), "tb": ("terabyte", "terabytes"), "kw": ("kilowatt", "kilowatts"), "w": ("watt", "watts"), "v": ("volt", "volts"),
    "k": ("thousand", "thousand"), "x": ("times", "times"), "%": ("percent", "percent"), "°": ("degree", "degrees"),
    "°c": ("degree Celsius", "degrees Celsius"), "°f": ("degree Fahrenheit", "degrees Fahrenheit"),
}  # fmt: skip
MONEY = {"$": ("dollar", "cent"), "£": ("pound", "penny"), "€": ("euro", "cent"), "¥": ("yen", ""), "₹": ("rupee", "paisa")}
CENTS = {"penny": "pence", "paisa": "paise"}
PARTS = {2: "half", 3: "third", 4: "quarter"}
SHORT = {
    "mr.": "mister", "mrs.": "missus", "ms.": "miz", "dr.": "doctor", "prof.": "professor", "jr.": "junior", "sr.": "senior", "vs.": "versus",
    "etc.": "et cetera", "e.g.": "for example", "i.e.": "that is", "approx.": "approximately", "dept.": "department", "inc.": "incorporated",
    "ltd.": "limited", "co.": "company", "corp.": "corporation", "capt.": "captain", "gen.": "general", "lt.": "lieutenant", "col.": "colonel",
    "sgt.": "sergeant", "rev.": "reverend", "hon.": "honorable", "gov.": "governor", "sen.": "senator", "rep.": "representative",
    "fig.": "figure", "vol.": "volume", "ave.": "avenue", "blvd.": "boulevard", "rd.": "road", "mt.": "mount", "est.": "established",
    "dr": "doctor", "mr": "mister", "mrs": "missus", "w/o": "without", "w/": "with", "ph.d.": "P H D", "a.m.": "A M", "p.m.": "P M",
}  # fmt: skip
CALLED = {".": "dot", "/": "slash", "-": "dash", "_": "underscore", "?": "question mark", "=": "equals", "&": "and", "#": "hash", ":": "colon",
          "@": "at", "%": "percent", "+": "plus", "~": "tilde"}  # fmt: skip
NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+"
SCALE = r"(?:\s+|(?=[kmb]n?\b))(?P<scale>hundred|thousand|million|billion|trillion|k|m|bn|b)\b"
SCALES = {"k": "thousand", "m": "million", "bn": "billion", "b": "billion"}
DASH = "[-–—]"


def spoken(text: str) -> str:
    """One sentence in words. Punctuation that is heard stays: , . ? ! ; :"""
    text = plain(text)
    for pattern, said in RULES:
        text = pattern.sub(said, text)
    return re.sub(r"\s+", " ", text).strip()


def plain(text: str) -> str:
    """Characters of one kind each: straight quotes, plain spaces and dashes, no control characters, composed letters, no pictures."""
    text = unicodedata.normalize("NFKC", text.replace("’", "'").replace("‘", "'").replace("…", "... ").replace("½", " 1/2").replace("¼", " 1/4"))
    text = re.sub(r"[“”„«»\"`]", '"', text.replace("\u2044", "/").replace("−", "-"))
    return "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text)


def _url(found: re.Match[str]) -> str:
    address = found["address"]
    trailing = re.search(r"[.,;:!?)\]'\"]*$", address)
    end = trailing[0] if trailing else ""
    address = address[: len(address) - len(end)] if end else address
    return " " + _spelled(re.sub(r"^[a-z]+://", "", address, flags=re.I).rstrip("/")) + end


def _spelled(address: str) -> str:
    pieces = re.findall(r"[A-Za-z]+|\d+|[^A-Za-z\d\s]", address)
    return " ".join(
        digits(p) if p.isdigit() and len(p) > 4 else decimal(p) if p.isdigit() else CALLED.get(p, p if p.isalpha() else "") for p in pieces
    )


def _money(found: re.Match[str]) -> str:
    one, cent = MONEY[found["sign"]]
    amount, scale = found["amount"].replace(",", ""), found["scale"]
    many = one if one == "yen" else one + "s"
    if scale:
        return f" {decimal(amount)} {SCALES.get(scale.lower(), scale)} {many}"
    whole, _, rest = amount.partition(".")
    if len(rest) != 2 or not cent:
        return f" {decimal(amount)} {one if amount == '1' else many}"
    cents = f"{cardinal(int(rest))} {cent if int(rest) == 1 else CENTS.get(cent, cent + 's')}"
    if int(whole or 0) == 0 and int(rest):
        return f" {cents}"
    said = f" {cardinal(int(whole or 0))} {one if int(whole or 0) == 1 else many}"
    return said + (f" and {cents}" if int(rest) else "")


def _date(year_: str | None, month: str | int, day: str | None) -> str:
    name = MONTHS[int(month) - 1] if isinstance(month, int) or month.isdigit() else MONTH[month.lower().rstrip(".")]
    said = f"{name} {ordinal(int(day))}" if day else name
    return f" {said}, {year(int(year_))}" if year_ else f" {said}"


def _numeric_date(found: re.Match[str]) -> str:
    a, b, y = int(found[1]), int(found[2]), found[3]
    month, day = (a, b) if a <= 12 else (b, a)  # as Americans write it, unless it cannot be
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return found[0]
    return _date(y if len(y) == 4 else ("20" if int(y) < 70 else "19") + y, month, str(day))


def _time(found: re.Match[str]) -> str:
    hour, minute, half = int(found["hour"]), found["minute"], found["half"]
    if hour > 24 or (minute and int(minute) > 59):
        return found[0]
    said = cardinal(hour)
    if minute and int(minute):
        said += f" oh {cardinal(int(minute))}" if int(minute) < 10 else f" {cardinal(int(minute))}"
    elif minute and not half:
        said += " o'clock" if hour <= 12 else " hundred"
    if found["second"]:
        said += f" and {cardinal(int(found['second']))} seconds"
    return f" {said}" + (f" {half[0].upper()} M" if half else "")


def _unit(found: re.Match[str]) -> str:
    one, many = UNITS[found["unit"].lower()]
    return f"{found['lead']}{decimal(found['amount'])} {one if found['amount'] == '1' else many} "


def _fraction(found: re.Match[str]) -> str:
    top, bottom = int(found[2]), int(found[3])
    before = f"{cardinal(int(found[1]))} and " if found[1] else ""
    if not 1 <= top < bottom or bottom > 20:
        return f" {before}{cardinal(top)} over {cardinal(bottom)}"
    part = PARTS.get(bottom, ordinal(bottom))
    said = "a" if before and top == 1 else cardinal(top)
    return f" {before}{said} {part if top == 1 else 'halves' if part == 'half' else part + 's'}"


def _number(found: re.Match[str]) -> str:
    text = found[0]
    return f" {year(int(text))} " if re.fullmatch(r"(1[1-9]|20)\d\d", text) else f" {decimal(text)} "


def _short(found: re.Match[str]) -> str:
    said = SHORT[found[0].lower()]
    follows = found.string[found.end() :].lstrip(" \"'")
    ends = found[0].endswith(".") and not follows and found[0].lower() not in ("mr.", "mrs.", "dr.")
    return f"{said}." if ends else said


def _pause(found: re.Match[str]) -> str:
    """Of several marks in a row the first that ends a sentence, or else the first."""
    marks = "".join(found[0].split())
    return next((mark for mark in marks if mark in ".?!"), marks[0]) + " "


def _rule(
    pattern: str, said: str | Callable[[re.Match[str]], str], flags: re.RegexFlag = re.IGNORECASE
) -> tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]:
    return re.compile(pattern, flags), said


_MONTHS = "|".join(sorted(map(re.escape, MONTH), key=len, reverse=True))
_SHORTS = "|".join(sorted(map(re.escape, SHORT), key=len, reverse=True))
_UNITS = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
RULES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    _rule(r"(?P<address>\b(?:https?|ftp)://\S+|\bwww\.\S+)", _url),
    _rule(r"(?P<address>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)", _url),
    _rule(r"(?P<address>\b(?:[a-z\d-]+\.)+(?:com|org|net|edu|gov|io|dev|co\.uk|info)\b(?:/\S*)?)", _url),
    _rule(r"\bNo\.\s*(?=\d)", "number ", re.NOFLAG),
    _rule(r"(?<=[A-Za-z] )St\.(?=$|[ ,;!?]*$|\s+[a-z(])", "Street", re.NOFLAG),
    _rule(r"\bSt\.(?=\s+[A-Z])", "Saint", re.NOFLAG),
    _rule(r"\b(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])\b", lambda m: _date(m[1], m[2], m[3])),
    _rule(r"\b(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})\b", _numeric_date),
    _rule(rf"\b({_MONTHS})\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(\d{{4}}))?\b(?!:)", lambda m: _date(m[3], m[1], m[2])),
    _rule(
        rf"\b(\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?({_MONTHS})\b\.?(?:,?\s+(\d{{4}}))?",
        lambda m: f" the {ordinal(int(m[1]))} of{_date(m[3], m[2], None)}",
    ),
    _rule(r"\b(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d))?(?:\s*(?P<half>[ap]\.?m\b\.?))?", _time),
    _rule(r"\b(?P<hour>\d{1,2})(?P<minute>)(?P<second>)\s*(?P<half>[ap]\.?m\b\.?)", _time),
    _rule(rf"(?P<sign>[$£€¥₹])\s?(?P<amount>{NUMBER})(?:{SCALE})?", _money),
    _rule(rf"(?P<amount>{NUMBER})\s?(?P<sign>[€£])(?P<scale>)", _money),
    _rule(r"\b(\d{1,3})\s?¢", lambda m: f"{cardinal(int(m[1]))} cent{'' if m[1] == '1' else 's'}"),
    _rule(r"'(\d0)s\b", lambda m: plural(cardinal(int(m[1])))),
    _rule(r"\b(\d{2,4})'?s\b", lambda m: f" {decade(int(m[1]))} " if len(m[1]) == 4 else f" {plural(cardinal(int(m[1])))} "),
    _rule(r"\b(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b", lambda m: f" {ordinal(int(m[1].replace(',', '')))} "),
    _rule(r"\b(\d+)'(\d{1,2})(?:\"|'')", lambda m: f" {cardinal(int(m[1]))} foot {cardinal(int(m[2]))} "),
    _rule(r"(?<![\d/.])(?:(\d+)\s+)?(\d{1,3})/(\d{1,3})(?![\d/])", _fraction),
    _rule(rf"\b(\d{{3}}){DASH}(\d{{3}}){DASH}(\d{{4}})\b", lambda m: f" {digits(m[1])}, {digits(m[2])}, {digits(m[3])} "),
    _rule(rf"\b(\d{{3}}){DASH}(\d{{4}})\b", lambda m: f" {digits(m[1])}, {digits(m[2])} "),
    _rule(rf"(?<=\d)\s?{DASH}\s?(?=\d)", " to "),
    _rule(r"\b\d+(?:\.\d+){2,}\b", lambda m: " point ".join(decimal(part) for part in m[0].split("."))),
    _rule(rf"(?P<lead>^|[^\w.])(?P<amount>-?(?:{NUMBER}))\s?(?P<unit>{_UNITS})(?![\w/])(?:\.(?=\s+[a-z,]))?", _unit),
    _rule(rf"(?<![\w.])(?:{_SHORTS})(?!\w)", _short),
    _rule(r"\b((?:[A-Za-z]\.){2,})(?=\s*$)", lambda m: " ".join(m[1].replace(".", " ").upper().split()) + ".", re.NOFLAG),
    _rule(r"\b((?:[A-Za-z]\.){2,})", lambda m: " ".join(m[1].replace(".", " ").upper().split()), re.NOFLAG),
    _rule(r"#\s?(?=\d)", " number "),
    _rule(r"(?<=\d)\s?[x×]\s?(?=\d)", " by "),
    _rule(r"~\s?(?=\d)", " about "),
    _rule(r"(?<=\d)\s?\+\s?(?=\d)|\s\+\s", " plus "),
    _rule(r"(?<=\d)\s?=\s?(?=-?\d)|\s=\s", " equals "),
    _rule(r"(?<=\w)\+\+", " plus plus "),
    _rule(r"(?<=\d)\+", " plus "),
    _rule(r"(?<=[\d\s])<(?=[\s\d])", " less than "),
    _rule(r"(?<=[\d\s])>(?=[\s\d])", " greater than "),
    _rule(rf"(?<![\w.])-(?=(?:{NUMBER}))", " minus "),
    _rule(rf"(?:{NUMBER})(?![\d])", _number),
    _rule(r"\s*&\s*", " and "),
    _rule(r"(?<=\w)\s?%", " percent "),
    _rule(r"(?<=\w)@(?=\w)|\s@\s", " at "),
    _rule(r"\band/or\b", "and or"),
    _rule(r"(?<=\w)/(?=\w)", " slash "),
    _rule(r"(?<=\w)[-_](?=\w)", " "),
    _rule(r"\.{2,}", ", "),
    _rule(r"\s*[—–]\s*|\s+-+\s+|--+|[()\[\]{}]", ", "),
    _rule(r"[^\w\s,.?!;:']", " "),
    _rule(r"_", " "),
    _rule(r"\s*([,.?!;:])[\s,.?!;:]*", _pause),
    _rule(r"^[\s,;:]+", ""),
]
