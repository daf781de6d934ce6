"""All attacks by name."""

from collections.abc import Mapping
from typing import Final

from loadtests.stress.bad_inputs.attacks.attack import Attack
from loadtests.stress.bad_inputs.attacks.bodies import BODIES
from loadtests.stress.bad_inputs.attacks.connections import CONNECTIONS
from loadtests.stress.bad_inputs.attacks.files import FILES
from loadtests.stress.bad_inputs.attacks.markup import MARKUP

ATTACKS: Final[Mapping[str, Attack]] = {attack.name: attack for attack in (*CONNECTIONS, *BODIES, *FILES, *MARKUP)}
