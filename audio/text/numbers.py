"""Numbers as English words. Knows digits, nothing of the text around them.

>>> cardinal(1234), ordinal(21), year(1984), decimal("3.14"), digits("007")
('one thousand two hundred thirty-four', 'twenty-first', 'nineteen eighty-four', 'three point one four', 'zero zero seven')
"""

SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
GREAT = ("", "thousand", "million", "billion", "trillion", "quadrillion", "quintillion")
ODD = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth", "twelve": "twelfth"}
MOST = 10 ** (3 * len(GREAT))  # from here on a number is read digit by digit


def cardinal(number: int) -> str:
    """American style, without "and"."""
    if number < 0:
        return f"minus {cardinal(-number)}"
    if number < 20:
        return SMALL[number]
    if number < 100:
        ten, one = divmod(number, 10)
        return TENS[ten] + (f"-{SMALL[one]}" if one else "")
    if number >= MOST:
        return digits(str(number))
    words: list[str] = []
    for power in range(len(GREAT) - 1, -1, -1):
        part = number // 1000**power % 1000
        if part >= 100:
            words += [SMALL[part // 100], "hundred"]
        if part % 100:
            words.append(cardinal(part % 100))
        if part and power:
            words.append(GREAT[power])
    return " ".join(words)


def ordinal(number: int) -> str:
    head, _, last = cardinal(number).rpartition(" ")
    front, hyphen, last = last.rpartition("-")
    if last in ODD:
        last = ODD[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return f"{head} {front}{hyphen}{last}".strip()


def year(number: int) -> str:
    """As years are read: 1905 nineteen oh five, 2000 two thousand, 2008 two thousand eight, 2021 twenty twenty-one."""
    century, rest = divmod(number, 100)
    if not 1100 <= number <= 2099 or 2000 <= number <= 2009:
        return cardinal(number)
    return f"{cardinal(century)} {'hundred' if not rest else f'oh {SMALL[rest]}' if rest < 10 else cardinal(rest)}"


def decade(number: int) -> str:
    """1990 -> nineteen nineties."""
    return plural(year(number))


def plural(words: str) -> str:
    """The last word as more than one: twenties, hundreds, sixes."""
    return words[:-1] + "ies" if words.endswith("y") else words + ("es" if words.endswith(("x", "s", "h")) else "s")


def digits(text: str) -> str:
    """Digit by digit; anything else is passed over."""
    return " ".join(SMALL[int(char)] for char in text if char in "0123456789")


def decimal(text: str) -> str:
    """A number as it is written: 1,234.50, -3, .5, 007."""
    minus, text = ("minus ", text[1:]) if text.startswith("-") else ("", text)
    whole, point, fraction = text.replace(",", "").partition(".")
    words = cardinal(int(whole)) if whole else "zero" if point else ""
    if len(whole) > 1 and whole.startswith("0"):
        words = digits(whole)
    return minus + words + (f" point {digits(fraction)}" if fraction else "")
