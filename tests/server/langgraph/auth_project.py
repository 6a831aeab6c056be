"""A project with custom auth: tokens name their user, users own their objects, and some may do less."""

AUTH = """
from langgraph_sdk import Auth

auth = Auth()
USERS = {"ann": ["read", "write"], "bob": ["read", "write"], "eve": ["read"], "team": [], "broken": []}


@auth.authenticate
async def authenticate(authorization: str | None, method: str, path: str, headers: dict) -> dict:
    assert headers[b"host"]
    if authorization == "Bearer teapot":
        raise Auth.exceptions.HTTPException(status_code=418, detail="I am a teapot")
    if authorization == "Bearer crash":
        raise ZeroDivisionError("the secret of the house")
    name = (authorization or "").removeprefix("Bearer ")
    if name not in USERS:
        raise Auth.exceptions.HTTPException(status_code=401, detail="who are you?")
    return {"identity": name, "permissions": USERS[name], "city": "Graz"}


@auth.on
async def own(ctx: Auth.types.AuthContext, value: dict) -> dict:
    assert ctx.user.identity == ctx.user["identity"]
    assert ctx.user.city == "Graz"
    if ctx.user.identity == "broken":
        raise KeyError("inside")
    if ctx.action in ("create", "create_run", "update"):
        if "write" not in ctx.permissions:
            return False
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}


@auth.on.threads.delete
async def delete(ctx, value):
    if ctx.user.identity == "bob":
        raise Auth.exceptions.HTTPException(status_code=403, detail="bob deletes nothing")
    return {"owner": {"$eq": ctx.user.identity}}


@auth.on.store
async def scope(ctx, value):
    value["namespace"] = (ctx.user.identity, *(value.get("namespace") or ()))
"""

MEMBERS = """
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
def authenticate(headers: dict) -> str:
    return headers[b"x-user"].decode()


@auth.on(resources=["threads", "assistants", "crons"], actions=["create", "create_run"])
async def make(ctx, value):
    value.setdefault("metadata", {}).setdefault("members", []).append(ctx.user.identity)
    return {"members": {"$contains": ctx.user.identity}}


@auth.on
async def see(ctx, value):
    return {"members": {"$contains": [ctx.user.identity]}}
"""

WHO = """
from typing import TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph


class State(TypedDict, total=False):
    user: dict
    user_id: str
    permissions: list


async def tell(state: State, config: RunnableConfig) -> State:
    given = config["configurable"]
    return {
        "user": given["langgraph_auth_user"],
        "user_id": given["langgraph_auth_user_id"],
        "permissions": given["langgraph_auth_permissions"],
    }


builder = StateGraph(State)
builder.add_node("tell", tell)
builder.add_edge(START, "tell")
graph = builder.compile()
"""
