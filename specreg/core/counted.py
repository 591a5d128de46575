"""Write a number of things in words."""


def counted(number: int, noun: str) -> str:
    """Return a number of things, such as 1 launch or 2 launches.

    Args:
        number: how many there are.
        noun: what they are, in the singular.
    """
    if number == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"
