"""All invariants of a translation, and the check of a target against them."""

from dragoman_service.text.invariants.copied_tokens import (
    find_changed_addresses,
    find_changed_identifiers,
    find_changed_names,
    find_changed_names_of_lists,
)
from dragoman_service.text.invariants.form import (
    find_changed_capitals,
    find_changed_ending,
    find_changed_white_space,
)
from dragoman_service.text.invariants.quantities import find_changed_numbers
from dragoman_service.text.invariants.symbols import (
    find_changed_markup,
    find_changed_quotation_marks,
    find_changed_symbols,
    find_empty_translation,
    find_invalid_output,
)
from dragoman_service.text.invariants.untranslated import find_untranslated
from dragoman_service.text.invariants.violations import Invariant, Texts, Violation

INVARIANTS: tuple[Invariant, ...] = (
    find_empty_translation,
    find_invalid_output,
    find_changed_numbers,
    find_changed_identifiers,
    find_changed_symbols,
    find_changed_quotation_marks,
    find_changed_names,
    find_changed_names_of_lists,
    find_changed_addresses,
    find_changed_markup,
    find_changed_ending,
    find_changed_white_space,
    find_changed_capitals,
    find_untranslated,
)


def find_violations(texts: Texts) -> list[Violation]:
    """Return the violations of all invariants by a target, in the order of `INVARIANTS`.

    The time is linear in the length of the texts: about 20 us for 40 characters, and 60 us for 130.
    """
    return [violation for invariant in INVARIANTS for violation in invariant(texts)]
