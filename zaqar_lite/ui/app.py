"""The page's own small application: which address shows what, and the frame around it."""

import functools
from collections.abc import Awaitable, Callable
from inspect import isfunction
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from zaqar_lite import __version__
from zaqar_lite.ui import actions, formats, screens, session
from zaqar_lite.ui.calls import OWN, App, Caller, Refused, Scope, project_address, queue_address
from zaqar_lite.ui.session import Session

_HERE = Path(__file__).parent
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
_DEFAULT_PROJECT = "default"
_WRONG_KEY = "The server does not know this key, or it has expired."
_NO_PROJECT = (
    "This key is bound to no project. Write the project that you want to see into the address: "
    "/ui/p/PROJECT/."
)
Screen = Callable[[Caller, Request], Awaitable[dict[str, Any]]]
Action = Callable[[Caller, Request, dict[str, str]], Awaitable[str]]
_PROJECT = "/ui/p/{project}"
_QUEUE = _PROJECT + "/q/{queue}"
_SCREENS: tuple[tuple[str, str, Screen, Action | None], ...] = (
    (f"{_PROJECT}/", "queues.html", screens.queues, actions.create_queue),
    (f"{_PROJECT}/schedules", "schedules.html", screens.schedules, actions.on_schedules),
    (f"{_PROJECT}/server", "server.html", screens.server, None),
    (f"{_PROJECT}/pools", "pools.html", screens.pools, actions.on_pools),
    (f"{_QUEUE}/", "queue.html", screens.queue, actions.on_queue),
    (f"{_QUEUE}/dead", "dead.html", screens.dead_letters, actions.redrive),
    (f"{_QUEUE}/subscriptions", "subscriptions.html", screens.subscriptions, None),
    (f"{_QUEUE}/claims", "claims.html", screens.claims, actions.release),
    (f"{_QUEUE}/jobs", "jobs.html", screens.jobs, actions.on_delayed),
    (f"{_QUEUE}/jobs/{{job}}", "job.html", screens.job, actions.cancel_job),
    (f"{_QUEUE}/m/{{message}}", "message.html", screens.message, actions.on_message),
)
"""Each screen: its address, its template, what it shows, and what its forms do."""


def make_page(api: App, *, authenticates: bool) -> Starlette:
    """Make the page's application over the API `api`; people sign in where it `authenticates`."""
    made = _Page(api, authenticates=authenticates)
    return Starlette(routes=made.routes(), exception_handlers={404: made.missing})


class _Static(StaticFiles):
    """The style, the script and the icon; a browser asks by their ETag whether it has them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers.update({**_HEADERS, "cache-control": "no-cache"})
        return answer


class _Page:
    def __init__(self, api: App, *, authenticates: bool) -> None:
        self._api = api
        self._authenticates = authenticates
        self._templates = templates()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/ui", self._home),
            Route("/ui/", self._home),
            Mount("/ui/static", _Static(directory=_HERE / "static")),
            Route("/ui/sign-in", self._sign_in, methods=["GET", "POST"]),
            Route("/ui/sign-out", self._sign_out, methods=["POST"]),
            *(self._route(*one) for one in _SCREENS),
        ]

    def _route(self, path: str, template: str, screen: Screen, action: Action | None) -> Route:
        async def answer(request: Request) -> Response:
            found = session.read(request)
            if self._authenticates and found.key is None:
                return RedirectResponse("/ui/sign-in", 303)
            caller = self._caller(request, request.path_params["project"], found.key)
            try:
                if request.method == "POST" and action is not None:
                    fields = dict(await session.form(request, found))
                    return RedirectResponse(await action(caller, request, fields), 303)
                return self._render(request, found, template, await screen(caller, request))
            except Refused as refused:
                if refused.status == 401:
                    return RedirectResponse("/ui/sign-in", 303)
                lacks_project = caller.project == OWN and refused.title == "Project-Id Missing"
                told = _NO_PROJECT if lacks_project else refused.description
                values = {"title": refused.title, "description": told}
                return self._render(request, found, "refused.html", values, refused.status)

        return Route(path, answer, methods=["GET", "POST"] if action else ["GET"])

    def _caller(self, request: Request, project: str, key: str | None) -> Caller:
        host, client = request.headers.get("host", "").encode(), request.client
        address = None if client is None else (client.host, client.port)
        return Caller(self._api, project, key, host, address)

    def _render(
        self,
        request: Request,
        found: Session,
        template: str,
        values: dict[str, Any],
        status: int = 200,
    ) -> Response:
        text = self._templates.get_template(template).render(
            **values,
            project=request.path_params.get("project", ""),
            queue=request.path_params.get("queue", ""),
            home=project_address(request),
            here=queue_address(request),
            path=quote(request.scope["path"], safe="/-._~"),
            is_form=request.method == "POST",
            token=found.token,
            signed_in=found.key is not None,
            query={"q": "", **request.query_params},
        )
        response = HTMLResponse(text, status, headers=_HEADERS)
        if found.is_new:
            session.remember(request, response, session.TOKEN, found.token)
        return response

    async def missing(self, request: Request, _: Exception) -> Response:
        """Answer an address that shows nothing."""
        values = {"title": "There is no such page", "description": ""}
        return self._render(request, session.read(request), "refused.html", values, 404)

    async def _home(self, request: Request) -> Response:
        project = OWN if self._authenticates else _DEFAULT_PROJECT
        return RedirectResponse(f"/ui/p/{project}/", 303)

    async def _sign_in(self, request: Request) -> Response:
        found = session.read(request)
        if request.method == "GET" or not self._authenticates:
            return self._render(request, found, "sign-in.html", {"wrong": ""})
        try:
            key = (await session.form(request, found)).get("key", "").strip() or "-"
            if len(key) > session.LONGEST_KEY:
                raise Refused("This key is too long", "A browser keeps no cookie as long as that.")
            await self._caller(request, OWN, key).get("/v2/")
        except Refused as refused:
            status, wrong = refused.status, f"{refused.title}. {refused.description}"
            if status == 401:
                status, wrong = 403, _WRONG_KEY
            return self._render(request, found, "sign-in.html", {"wrong": wrong}, status)
        response = RedirectResponse("/ui/", 303)
        session.remember(request, response, session.KEY, key)
        return response

    async def _sign_out(self, request: Request) -> Response:
        response = RedirectResponse("/ui/sign-in", 303)
        try:
            await session.form(request, session.read(request))
        except Refused:
            return response
        response.delete_cookie(session.KEY, path=session.PATH)
        return response


@functools.cache
def templates() -> Environment:
    """The templates of all screens; each is compiled when it is first used."""
    found = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update({name: one for name, one in vars(formats).items() if isfunction(one)})
    found.globals.update(version=__version__)
    return found
