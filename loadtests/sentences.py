"""What the load tests translate: everyday English of different lengths, one sentence a text."""

import random
from collections.abc import Sequence
from typing import Final

SENTENCES: Final = (
    "The weather is nice today.",
    "Where is the train station?",
    "We waited 45 minutes for the bus.",
    "A man is sitting on a bench and reading a newspaper.",
    "Two dogs are playing in the snow.",
    "The museum is closed on Mondays, but the garden is open all week.",
    "She has been learning German for three years and now works in Berlin.",
    "Please send us the signed contract by Friday.",
    "The children ran across the field to see the balloon land.",
    "Prices rose by 2.4 percent in March, more than economists had expected.",
    "Can you tell me how to get to the airport from here?",
    "The government announced on Tuesday that it would build a new bridge over the river.",
    "He lost his keys somewhere between the office and the car park.",
    "If it rains tomorrow, we will meet inside.",
    "The doctor said that he should drink more water and sleep at least seven hours a night.",
    "I would like a table for four people at eight o'clock.",
    "Scientists have found that the glacier is melting faster than they had thought ten years ago.",
    "Nobody knew the answer.",
    "The company plans to open twelve new shops next year, most of them in small towns.",
    "My grandmother used to bake bread every Saturday morning.",
    "The second half began with a goal for the guests, who had been better from the start.",
    "Turn left at the traffic lights and then go straight on until you see the church.",
    "The film is about two brothers who travel through the country in an old bus.",
    "Thank you for your letter of 12 May, which we received yesterday.",
)


def sample(generator: random.Random, size: int) -> Sequence[str]:
    """Return so many of the sentences; some may occur twice."""
    return generator.choices(SENTENCES, k=size)
