"""All attacks by name."""

from collections.abc import Mapping
from typing import Final

from loadtests.scenarios.bad_inputs.attacks.attack import Attack
from loadtests.scenarios.bad_inputs.attacks.bodies import BODIES
from loadtests.scenarios.bad_inputs.attacks.connections import CONNECTIONS
from loadtests.scenarios.bad_inputs.attacks.files import FILES
from loadtests.scenarios.bad_inputs.attacks.markup import MARKUP

ATTACKS: Final[Mapping[str, Attack]] = {attack.name: attack for attack in (*CONNECTIONS, *BODIES, *FILES, *MARKUP)}
