"""ShareGPT: conversations that people shared, of which what they said is replayed.

Real files hold conversations without a word of the user's; those are left out.
"""

import msgspec

from specreg.datasets.formats._form import Row, RowForm
from specreg.datasets.prompts import Prompt

_USER = {"human", "user"}


class Saying(msgspec.Struct, frozen=True, kw_only=True, rename={"who": "from"}):
    """What somebody says; `who`: human, gpt or others, in the file `from`."""

    who: str
    value: str


class SharegptRow(Row, frozen=True, kw_only=True):
    """A conversation. Its id is optional in such files, and not read."""

    conversations: tuple[Saying, ...]

    def prompt(self, number: int) -> Prompt | None:
        """What the user said; None where that is nothing, or a turn of it is."""
        turns = tuple(one.value for one in self.conversations if one.who in _USER)
        if not turns or not all(map(str.strip, turns)):
            return None
        return Prompt(id=f"sharegpt-{number}", category="chat", turns=turns)


FORM = RowForm(
    name="sharegpt",
    row=SharegptRow,
    needs="conversations (a list of objects with from and value)",
)
