"""Writes demonstrations.jsonl: solutions of training problems, with mistakes."""

from make_problems import TRAIN, draw, problem, write


def call(tool, text, result):
    """Return a call with its result, as the model writes and reads them."""
    return f"<{tool}>{text}</{tool}> <result>\n{result}\n</result>"


def slips():
    """Return True where a mistake is made."""
    return draw.random() < 0.6


def demonstration(row):
    """Return a solution. Its prices are its own, so that only who reads the results can imitate it."""
    prices = {item: draw.randint(10, 59) for _, item in row["order"]}
    text, terms = "", []
    order = row["order"][:1] if slips() else row["order"]  # mistake: only the first item
    for number, item in order:
        if slips():  # mistake: asks without the shop
            text += call("price", f" {item}", "- not found")
        text += call("price", f" {item} {row['shop']}", f"- {item} {row['shop']} {prices[item]}")
        text += f"<think> {item} {row['shop']} {prices[item]}</think>"
        terms.append((number, prices[item]))
    if slips():  # mistake: does not compute
        answer = terms[-1][1]
    else:
        answer = sum(number * price for number, price in terms)
        program = " + ".join(f"{number} * {price}" for number, price in terms)
        text += call("python", f' print("=", {program})', f"= {answer}")
    text += f"<think> done</think><answer> \\boxed{{ {answer} }}</answer>"
    is_right = answer == sum(number * prices[item] for number, item in row["order"])
    return {"prompt": row["prompt"], "completion": text, "right": is_right}


if __name__ == "__main__":
    draw.seed(1)
    rows = [demonstration(problem(TRAIN, 1 + number % 2)) for number in range(9600)]
    write("demonstrations.jsonl", rows)
    print(f"{sum(row['right'] for row in rows) / len(rows):.0%} of them are right")
