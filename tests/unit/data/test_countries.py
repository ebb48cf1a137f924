from ramify.data.countries import countries, passages


def test_the_facts_are_those_of_the_package():
    from countryinfo import CountryInfo

    assert len(countries()) > 100
    for country in countries():
        table = CountryInfo(country.name).info()
        assert (table["capital"], table["area"], table["population"]) == (
            country.capital,
            country.area,
            country.population,
        )


def test_a_passage_for_each_fact():
    rows = list(passages())
    assert len(rows) == 3 * len(countries()) == len({row["id"] for row in rows})
    texts = {row["id"]: row["text"] for row in rows}
    assert texts["France/capital"] == "The capital of France is Paris."
    assert texts["France/area"] == "The area of France is 640679 square kilometres."
