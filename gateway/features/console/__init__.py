"""The operators' view: the gateway's state as one JSON document, a page that draws it, and a playground.

state.py       the state: models, workers, teams, limits, and the counters behind their rates
terminal.py    two states -> the lines that `dragoman status` prints
guard.py       access to the console, and headers for browsers
playground.py  one request through the gateway's own kernel, with what both sides sent and got
spend.py       a month of spending for the page
transcript.py  what a playground's request has shown so far, bounded
routes.py      the ASGI endpoints on the admin address
page/          the page: HTML, CSS and JavaScript, served as they are
"""

from gateway.features.console.routes import Console, Watched
