"""Sends queries to a Prometheus server.

Usage: ask.py HOST:PORT QUERY                            checks whether the query currently returns any series
       ask.py HOST:PORT --board FILE FROM TO SCRAPE      lists the queries of a Grafana dashboard that return no values

FROM and TO are the start and end of the queried period, and SCRAPE is the scrape interval in seconds. The exit status
is 1 if QUERY returns nothing. With --board, it is 1 only if a query is invalid.
"""

import json
import sys
from urllib.parse import urlencode
from urllib.request import urlopen
from urllib.error import HTTPError


def ask(server, path, **query):
    """Returns the series that a query selects."""
    try:
        with urlopen(f"http://{server}/api/v1/{path}?{urlencode(query)}", timeout=20) as answer:
            return json.load(answer)["data"]["result"]
    except HTTPError as error:
        sys.exit(f"{query['query']}: {json.load(error)['error']}")


def has_values(series):
    return any(value not in ("NaN", "+Inf", "-Inf") for one in series for _, value in one["values"])


def empty_queries(server, file, begin, end, scrape):
    with open(file) as board:
        panels = json.load(board)["panels"]
    queries = [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]
    empty = []
    for title, expr in queries:
        query = expr.replace("$__rate_interval", f"{4 * scrape}s").replace("$device", ".*").replace("$job", ".*")
        if not has_values(ask(server, "query_range", query=query, start=begin, end=end, step=scrape)):
            empty.append(f"{title}: {expr}")
    print(f"{len(queries) - len(empty)} of {len(queries)} queries of {file} returned values; these returned none:")
    print("".join(f"    {line}\n" for line in empty), end="")


def main():
    server, query, *rest = sys.argv[1:]
    if query == "--board":
        file, *times = rest
        empty_queries(server, file, *map(int, times))
    elif not ask(server, "query", query=query):
        sys.exit(1)


main()
