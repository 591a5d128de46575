"""Say what a report comes to. The terminal, the page and Markdown render the parts alike."""

from specreg.report.document import Report
from specreg.report.next_steps import next_steps
from specreg.report.parts import Text, VerdictLine, View
from specreg.report.sentence import answer_of, comparison_of
from specreg.report.summary import notes_of


def view_of(report: Report) -> View:
    """Return the answer in one sentence, what was compared with what, notes, and what to type."""
    tone, sentence = answer_of(report)
    notes = [Text(note) for note in notes_of(report)]
    return (
        VerdictLine(tone=tone, text=sentence),
        Text(comparison_of(report)),
        *notes,
        *next_steps(report),
    )
